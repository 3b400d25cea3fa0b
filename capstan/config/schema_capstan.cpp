// "capstan": what upstream's files have no key for. Upstream ignores the section, so one file
// serves both.
#include "capstan/config/schema.h"

namespace capstan::config {

namespace {

std::vector<Key> offload_keys() {
  return {
      choice("late_updates", "null", {"always", "never"})
          .says("Offloaded optimizer: go on with the next forward and wait for each unit where it "
                "is used; null: at stage 3 only.")
          .costs("Hides much of the update. Below stage 3, a parameter that a program holds itself "
                 "may be old between two steps."),
      choice("early_updates", "never", {"never", "always", "measured"})
          .says("Offloaded optimizer: update units in backward, when their gradients have come; "
                "dropped and done again where the step is clipped or skipped. measured: both ways "
                "are tried, and the faster one is used.")
          .costs("Hides the update behind backward; host memory: early_updates_bytes."),
      integer("early_updates_bytes", "8589934592")
          .at_least(0)
          .says(
              "Host memory for early_updates, beside the state; 14 bytes per parameter with AdamW "
              "and 16-bit parameters.")
          .costs("More: more units are updated in backward."),
      integer("device_bytes", "null")
          .at_least(0)
          .says("offload_optimizer.ratio auto: what each device may hold, activations among it; "
                "null: what is free at the start.")
          .costs("Less: more is offloaded."),
      integer("activation_bytes", "8589934592")
          .at_least(0)
          .says("offload_optimizer.ratio auto: what is left of that for activations.")
          .costs("More: more is offloaded."),
  };
}

Section own_section() {
  const std::vector<std::string> dtypes = {"fp32", "fp16", "bf16"};
  Section section;
  section.path = "capstan";
  section.meaning = "Capstan's own keys. Upstream ignores this section, so one file serves both.";
  section.keys = {
      choice("reduce_schedule", "null", {"at_step", "per_backward"})
          .says("When gradients are reduced; null: at_step for stages 0 and 1, per_backward for 2 "
                "and 3.")
          .costs("at_step moves less with accumulation; per_backward keeps only our shard of the "
                 "sum."),
      choice("master_dtype", "null", dtypes)
          .says("Dtype of the copy that is updated; null: fp32.")
          .costs("16 bits: 2 bytes less per parameter, small updates are lost."),
      choice("optimizer_state_dtype", "null", dtypes)
          .says(
              "Dtype of the moments; null: fp32. Optimizers of torch keep them in the dtype of the "
              "copy that is updated, and refuse another.")
          .costs("16 bits: 4 bytes less per parameter with Adam, less accurate."),
      integer("max_skipped_in_a_row", "0")
          .at_least(0)
          .says("End the run after this many skipped steps in a row; 0: never.")
          .costs("Finds a diverged run early."),
      integer("timeout_s", "600")
          .own_per_rank()
          .at_least(1)
          .at_most(31536000)
          .says("Seconds that a collective may take. In Python, unless it is set: the process "
                "group's.")
          .costs("Shorter: a dead rank is reported sooner; longer: slow ranks are tolerated."),
      choice("backend", "null", {"nccl", "mpi"})
          .says("How ranks talk; null: nccl for GPUs, mpi for CPUs. In Python the process group's, "
                "which this is compared with.")
          .costs("mpi on GPUs copies through host memory."),
      flag("reduce_in_rank_order", true)
          .says("NCCL: sum gradients in rank order, so that every run gives the same bits.")
          .costs("false uses NCCL's own reduction: faster on many GPUs, not reproducible."),
      flag("recompute", false)
          .only_for({Door::program}, Standing::refused,
                    "it changes the models of capstan train; switch recomputation on in the model "
                    "itself: gradient_checkpointing_enable() of Hugging Face's, "
                    "torch.utils.checkpoint in your own")
          .says("Compute activations of every block again in backward (models of capstan train).")
          .costs("Far less memory for activations, about a third more compute."),
      flag("fuse_activations", true)
          .only_for({Door::capstan_package, Door::deepspeed_package}, Standing::no_effect,
                    "the models of capstan train compute GELU by torch's one function anyway")
          .says(
              "Modules of Hugging Face's that write the tanh form of GELU as a formula compute it "
              "by torch's one function (models of Python).")
          .costs("Far less memory for activations and faster; the last bits differ from the "
                 "formula's."),
      texts("units", "[]")
          .says("Dotted names of the modules that are units; empty: found by themselves.")
          .costs("Larger units: fewer, larger messages, more whole at a time."),
      integer("seed", "1234")
          .at_least(0)
          .only_for({Door::program, Door::deepspeed_package}, Standing::no_effect,
                    "the data loader is your own")
          .says("Seed of the shuffle of samples; unless it is set: --seed of capstan train, 0 in "
                "the package deepspeed.")
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
      "Parameters with hyper-parameters of their own, by a name for the group. A parameter belongs "
      "to the first group that matches its name. In Python of the optimizer that the configuration "
      "names.";
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
          .costs("As there."),
      number("weight_decay", "null")
          .at_least(0)
          .says("Weight decay; null: the optimizer's.")
          .costs("As there."),
  };
  return {own_section(), groups, group};
}

}  // namespace capstan::config
