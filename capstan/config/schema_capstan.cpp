// "capstan": what upstream's files have no key for. Upstream ignores the section, so one file
// serves both.
#include "capstan/config/schema.h"

namespace capstan::config {

namespace {

std::vector<Key> offload_keys() {
  return {
      choice("late_updates", "null", {"always", "never"})
          .says("With an offloaded optimizer: start the next forward before the update has "
                "finished, and wait for each unit where it is used; null: at stage 3 only.")
          .costs("Hides much of the update. Below stage 3, a program that holds a parameter and "
                 "reads it between two steps may see the old value."),
      choice("early_updates", "never", {"never", "always", "measured"})
          .says("With an offloaded optimizer: update units during backward, as soon as their "
                "gradients have arrived; the update is dropped and repeated if the step is clipped "
                "or skipped. measured: try both and use the faster one.")
          .costs("Hides the update behind backward; needs early_updates_bytes of host memory."),
      integer("early_updates_bytes", "8589934592")
          .at_least(0)
          .says("Host memory for early_updates, in addition to the state; 14 bytes per parameter "
                "with AdamW and 16-bit parameters.")
          .costs("More: more units are updated during backward."),
      integer("device_bytes", "null")
          .at_least(0)
          .says("With offload_optimizer.ratio auto: how much each device may hold, activations "
                "included; null: what is free at the start.")
          .costs("Less: more is offloaded."),
      integer("activation_bytes", "8589934592")
          .at_least(0)
          .says("With offload_optimizer.ratio auto: how much of that is left for activations.")
          .costs("More: more is offloaded."),
  };
}

Section own_section() {
  const std::vector<std::string> dtypes = {"fp32", "fp16", "bf16"};
  Section section;
  section.path = "capstan";
  section.meaning =
      "Capstan's own keys. DeepSpeed ignores this section, so one file works for both.";
  section.keys = {
      choice("reduce_schedule", "null", {"at_step", "per_backward"})
          .says("When gradients are reduced; null: at_step for stages 0 and 1, per_backward for 2 "
                "and 3.")
          .costs("at_step moves less with accumulation; per_backward keeps only our shard of the "
                 "sum."),
      choice("master_dtype", "null", dtypes)
          .says("Dtype of the master weights; null: fp32.")
          .costs("16 bits: 2 bytes less per parameter, small updates are lost."),
      choice("optimizer_state_dtype", "null", dtypes)
          .says("Dtype of the moments; null: fp32. torch's optimizers keep them in the dtype of "
                "the master weights and refuse any other.")
          .costs("16 bits: 4 bytes less per parameter with Adam, less accurate."),
      integer("max_skipped_in_a_row", "0")
          .at_least(0)
          .says("End the run after this many skipped steps in a row; 0: never.")
          .costs("Finds a diverged run early."),
      flag("find_nan", false)
          .says("Name the first output of a unit and the first gradient that is not finite, in a "
                "warning and for `capstan doctor`. See docs/tools.md.")
          .costs("Every output and gradient is looked at, and the device is waited for each time."),
      integer("timeout_s", "600")
          .own_per_rank()
          .at_least(1)
          .at_most(31536000)
          .says("Timeout of a collective in seconds. In Python, if unset: the process group's.")
          .costs("Shorter: a dead rank is reported sooner; longer: slow ranks are tolerated."),
      choice("backend", "null", {"nccl", "mpi"})
          .says("Backend between ranks; null: nccl for GPUs, mpi for CPUs. In Python it is the "
                "process group's, and this key must agree with it.")
          .costs("mpi on GPUs copies through host memory."),
      flag("reduce_in_rank_order", true)
          .says("NCCL: sum gradients in rank order, so that every run gives the same bits.")
          .costs("false uses NCCL's own reduction: faster on many GPUs, not reproducible."),
      integer("reduce_in_blocks_of", "1")
          .at_least(1)
          .says("Sum gradients inside of blocks of so many ranks, then over the blocks: the same "
                "bits as mics_shard_size without it. 1: in rank order.")
          .costs("One more buffer per block; NCCL's own reduction is not used."),
      flag("recompute", false)
          .only_for({Door::program}, Standing::refused,
                    "it applies to the models of capstan train; turn on recomputation in the model "
                    "itself: gradient_checkpointing_enable() for Hugging Face models, "
                    "torch.utils.checkpoint in your own")
          .says(
              "Recompute the activations of every block during backward (models of capstan train).")
          .costs("Far less memory for activations, about a third more compute."),
      flag("fuse_activations", true)
          .only_for({Door::capstan_package, Door::deepspeed_package}, Standing::no_effect,
                    "the models of capstan train use torch's GELU function anyway")
          .says("Hugging Face modules that spell out the tanh form of GELU as a formula use "
                "torch's GELU function instead (Python models).")
          .costs("Far less memory for activations and faster; the last bits differ from the "
                 "formula's."),
      text("metrics", "null")
          .says("Write a JSON object with the figures of each step to this file, which `capstan "
                "page` "
                "draws; rank 0 does. capstan train: its --metrics.")
          .costs("Reads the loss once per step; adds one small collective."),
      texts("units", "[]")
          .says("Dotted names of the modules that are units; empty: chosen automatically.")
          .costs("Larger units: fewer, larger messages, but more parameters are whole at a time."),
      choice("curriculum_cut", "truncate", {"truncate", "reshape"})
          .only_for({Door::program}, Standing::no_effect,
                    "the model itself cuts the sequences that it is given")
          .says("With curriculum_learning, in capstan train: truncate leaves the tail of a long "
                "sequence out; reshape makes several short sequences of it.")
          .costs("reshape: steps stay as large; truncate: early steps are cheaper."),
      choice("pipeline_schedule", "1f1b", {"1f1b", "gpipe", "zb-h1"})
          .needs(Feature::pipeline)
          .says("The order of forwards and backwards in a pipeline: in turns, all forwards first, "
                "or in turns "
                "with gradients of weights where a stage would wait. `capstan pipeline show` draws "
                "them.")
          .costs("gpipe holds the activations of all micro-batches; the time is the same. zb-h1 "
                 "waits less; "
                 "every stage holds as many activations as the first."),
      integer("seed", "1234")
          .at_least(0)
          .only_for({Door::program, Door::deepspeed_package}, Standing::no_effect,
                    "you bring your own data loader")
          .says("Seed for shuffling the samples; if unset: --seed of capstan train, 0 in the "
                "package deepspeed.")
          .costs("Nothing."),
  };
  const std::vector<Key> offload = offload_keys();
  section.keys.insert(section.keys.end(), offload.begin(), offload.end());
  return section;
}

}  // namespace

std::vector<Section> capstan_sections() {
  Section groups;
  groups.path = "capstan.parameter_groups";
  groups.meaning =
      "Groups of parameters with their own hyper-parameters, each under a name of your choice. A "
      "parameter belongs to the first group that matches its name. In Python they apply to the "
      "optimizer that the configuration names.";
  Section group;
  group.path = "capstan.parameter_groups.*";
  group.meaning = "One group of parameters.";
  group.keys = {
      texts("parameters", "")
          .must()
          .says("Patterns of names; * stands for any text.")
          .costs("Nothing."),
      number("lr", "null")
          .at_least(0)
          .says("Learning rate; null: the optimizer's.")
          .costs("The same."),
      number("weight_decay", "null")
          .at_least(0)
          .says("Weight decay; null: the optimizer's.")
          .costs("The same."),
  };
  Section trace;
  trace.path = "capstan.trace";
  trace.meaning =
      "A timeline of some steps on all ranks: trace.json for ui.perfetto.dev, and timeline.html "
      "for "
      "any browser. See tools.md.";
  trace.keys = {
      text("folder", "null")
          .says("Where the two files go; null: no timeline is drawn.")
          .costs("A little time in these steps; nothing in the others."),
      numbers("steps", "[3, 5]")
          .says("The first and the last step, counted from 1.")
          .costs("More steps: larger files."),
  };
  return {own_section(), groups, group, trace};
}

}  // namespace capstan::config
