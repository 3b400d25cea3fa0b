// Data efficiency, curriculum learning, layer drop, eigenvalues.
#include "capstan/config/schema.h"

namespace capstan::config {
namespace {

Section later(std::string path, Feature feature, std::string gate, std::vector<Key> keys) {
  Section section;
  section.path = std::move(path);
  section.meaning = std::string(name(feature)) + ".";
  section.feature = feature;
  section.gate = std::move(gate);
  section.keys = std::move(keys);
  return section;
}

std::vector<Key> difficulty_keys() {
  return {
      integer("min_difficulty", "null")
          .at_least(1)
          .says("Where difficulty starts.")
          .costs("Smaller: cheaper and easier first steps."),
      integer("max_difficulty", "null")
          .at_least(1)
          .says("Where difficulty ends.")
          .costs("Larger: all that the data hold is seen in the end."),
      choice("schedule_type", "null", {"fixed_discrete", "fixed_root", "fixed_linear", "custom"})
          .says("How difficulty grows: in the stairs that difficulty and max_step list, with a "
                "root of the step, evenly, or as a function of yours says (in Python).")
          .costs("A root is fast at first, an even growth spends longer on what is easy.")};
}

// The growth of what `path` is about.
Section growth_section(const std::string& path, Feature feature) {
  return later(
      path + ".schedule_config", feature, "",
      {integer("total_curriculum_step", "null")
           .at_least(1)
           .says("fixed_linear, fixed_root: the step at which difficulty reaches its maximum.")
           .costs("More steps: a slower growth."),
       integer("difficulty_step", "null")
           .at_least(1)
           .says("fixed_linear, fixed_root: difficulties are multiples of this: rounded down, but "
                 "from the first that is not below the minimum.")
           .costs("For lengths of sequences, multiples of 8 (fp16) or 16 keep GPUs fast."),
       integer("root_degree", "null")
           .at_least(1)
           .says("fixed_root: 2 for a square root.")
           .costs("Larger: faster at first."),
       numbers("difficulty", "null")
           .says("fixed_discrete: the difficulties, which rise.")
           .costs("As the difficulties say."),
       numbers("max_step", "null")
           .says("fixed_discrete: the last step of each difficulty but the last one.")
           .costs("Later: a slower growth.")});
}

std::vector<Section> sampling_sections() {
  std::vector<Key> metric = difficulty_keys();
  for (Key& key : std::vector<Key>{
           text("index_to_sample_path", "null")
               .says("File of the analyzer, without .idx: the samples of each value; for "
                     "percentiles also its percentile_merged file.")
               .costs("Host memory for every sample."),
           text("index_to_metric_path", "null")
               .says("File of the analyzer: the values; not needed for percentiles.")
               .costs("The same."),
           choice("difficulty_type", "value", {"value", "percentile"})
               .says("Whether difficulties bound the metric's value, or the share of the easiest "
                     "samples, of which max_difficulty is all.")
               .costs("Percentiles admit the same number of samples per unit."),
           choice("clustering_type", "schedule_based", {"single_cluster", "schedule_based"})
               .says("schedule_based: samples are admitted by this metric. single_cluster: they "
                     "are not; a function that sees each batch is told the difficulty.")
               .costs("Nothing.")}) {
    metric.push_back(key);
  }
  const std::string base = "data_efficiency.data_sampling";
  const std::string metrics = base + ".curriculum_learning.curriculum_metrics";
  return {
      later(base, Feature::data_sampling, "enabled",
            {flag("enabled", false)
                 .says("The training data that initialize() is given come as the curriculum says; "
                       "without one, shuffled.")
                 .costs("Host memory for every sample."),
             integer("num_epochs", "1000")
                 .at_least(1)
                 .says("The loader ends after so many times the samples of the data.")
                 .costs("Nothing."),
             integer("num_workers", "0")
                 .at_least(0)
                 .says("Worker processes of the loader.")
                 .costs("More memory on the host; batches are ready earlier."),
             flag("pin_memory", false)
                 .says("Batches in page-locked memory.")
                 .costs("Page-locked memory; faster copies to a GPU.")}),
      later(base + ".curriculum_learning", Feature::data_sampling, "enabled",
            {flag("enabled", false)
                 .says("Easy samples first; more are admitted as the metrics' difficulties grow.")
                 .costs("Steadier first steps; easy samples are seen more often."),
             text("data_cluster_path", "null")
                 .no_effect("groups of samples are computed where they are needed, and need no "
                            "files")
                 .says("Folder of DeepSpeed's clusters.")}),
      later(metrics, Feature::data_sampling, "", {}),
      later(metrics + ".*", Feature::data_sampling, "", std::move(metric)),
      growth_section(metrics + ".*", Feature::data_sampling),
      later(base + ".dynamic_batching", Feature::dynamic_batching, "enabled",
            {flag("enabled", false).says("Batches by tokens."),
             choice("lr_scaling_method", "linear", {"linear", "sqrt", "none"})
                 .says("Scale of the lr."),
             integer("min_batch_size", "1").at_least(1).says("Smallest batch."),
             integer("max_batch_size", "null").at_least(1).says("Largest batch."),
             choice("sequence_picking_order", "dataloader", {"dataloader", "random", "seqlen"})
                 .says("Order of sequences."),
             integer("max_tokens", "null").at_least(1).says("Tokens per batch."),
             text("metrics_path", "null").says("File of lengths."),
             flag("verbose", false).says("Lines.")}),
  };
}

std::vector<Section> routing_sections() {
  const std::string base = "data_efficiency.data_routing";
  return {
      later(base, Feature::data_routing, "enabled",
            {flag("enabled", false).says("Whether random_ltd acts.").costs("Nothing.")}),
      later(base + ".random_ltd", Feature::data_routing, "enabled",
            {flag("enabled", false)
                 .says("The layers that random_ltd_layer_id names see some of the tokens, chosen "
                       "anew each time; the others go past them.")
                 .costs("Cheaper steps; accuracy may change."),
             integer("total_layer_num", "null")
                 .at_least(1)
                 .says("Layers of the model.")
                 .costs("Nothing; tokens that layers saw are counted with it."),
             integer("random_ltd_layer_num", "null")
                 .at_least(1)
                 .says("Layers that drop tokens.")
                 .costs("More: cheaper steps."),
             numbers("random_ltd_layer_id", "null")
                 .says("Their numbers, as in the names of the model's layers. Best are those "
                       "between the first and the last.")
                 .costs("The same."),
             integer("micro_batch_size", "null")
                 .at_least(1)
                 .no_effect("micro-batches are as large as they come")
                 .says("Samples of a micro-batch."),
             text("model_mask_name", "null")
                 .says("What a layer calls its mask; null: attention_mask.")
                 .costs("Nothing."),
             choice("model_type", "decoder", {"decoder", "encoder"})
                 .no_effect("masks are cut for the tokens that are kept, whatever they mean")
                 .says("What kind of a model it is."),
             choice("hidden_state_order", "batch_seq_dim", {"batch_seq_dim", "seq_batch_dim"})
                 .says("Whether hidden states begin with the batch or with the sequence.")
                 .costs("Nothing.")}),
      later(base + ".random_ltd.random_ltd_schedule", Feature::data_routing, "",
            {integer("min_value", "null")
                 .at_least(1)
                 .says("Tokens that are kept at the start.")
                 .costs("Fewer: cheaper steps at the start."),
             integer("max_value", "null")
                 .at_least(1)
                 .says("Tokens that are kept at the end.")
                 .costs("As many as sequences have: nothing is dropped in the end."),
             choice("schedule_type", "fixed_linear", {"fixed_linear"})
                 .says("How it grows: evenly.")
                 .costs("Nothing.")}),
      later(base + ".random_ltd.random_ltd_schedule.schedule_config", Feature::data_routing, "",
            {integer("require_steps", "null")
                 .at_least(1)
                 .says("The step of max_value.")
                 .costs("More: cheaper steps for longer."),
             integer("seq_per_step", "null")
                 .at_least(1)
                 .says("The number of tokens is a multiple of this.")
                 .costs("Multiples of 8 or 16 keep GPUs fast.")}),
      later(base + ".random_ltd.layer_token_lr_schedule", Feature::data_routing, "enabled",
            {flag("enabled", false)
                 .refused("it is in DeepSpeed's schema, but DeepSpeed refuses it too; use a "
                          "scheduler over steps")
                 .says("Learning rate by tokens seen."),
             integer("total_layer_tokens", "null").no_effect("it is refused").says("Tokens."),
             integer("warmup_layer_tokens", "null")
                 .no_effect("it is refused")
                 .says("Tokens of warm-up.")}),
  };
}

}  // namespace

std::vector<Section> data_sections() {
  Section top;
  top.path = "data_efficiency";
  top.meaning = "Samples chosen by difficulty, and tokens that layers leave out.";
  const std::vector<Door> who = {Door::deepspeed_package};
  const char* const why = "only the package deepspeed has data_sampling and data_routing";
  top.keys = {flag("enabled", false)
                  .only_for(who, Standing::no_effect, why)
                  .says("Whether data_sampling and data_routing act at all.")
                  .costs("Nothing."),
              integer("seed", "1234")
                  .only_for(who, Standing::no_effect, why)
                  .says("Seed of both.")
                  .costs("Nothing.")};
  std::vector<Section> all = {std::move(top)};
  for (Section& section : sampling_sections()) all.push_back(std::move(section));
  for (Section& section : routing_sections()) all.push_back(std::move(section));

  std::vector<Key> curriculum = difficulty_keys();
  curriculum.insert(curriculum.begin(),
                    flag("enabled", false)
                        .says("Train on short sequences first, and longer ones later.")
                        .costs("Early steps are cheaper and steadier; a step does not see the same "
                               "number of tokens."));
  curriculum.push_back(choice("curriculum_type", "seqlen", {"seqlen"})
                           .no_effect("the length of sequences is all that this section is about")
                           .says("What difficulty means: the tokens of a sequence."));
  all.push_back(
      later("curriculum_learning", Feature::curriculum, "enabled", std::move(curriculum)));
  all.push_back(growth_section("curriculum_learning", Feature::curriculum));
  all.push_back(later("progressive_layer_drop", Feature::layer_drop, "enabled",
                      {flag("enabled", false)
                           .says("Leave layers out at random, more of them with time.")
                           .costs("Faster steps; a small loss of accuracy is possible."),
                       number("theta", "0.5")
                           .at_least(0)
                           .at_most(1)
                           .says("How often the last layer is kept in the end; 1: always.")
                           .costs("Smaller: cheaper steps."),
                       number("gamma", "0.001")
                           .at_least(0)
                           .says("How fast that share is approached, per step.")
                           .costs("The same.")}));
  for (const char* path : {"eigenvalue", "quantize_training.eigenvalue"}) {
    all.push_back(later(
        path, Feature::hessian_eigenvalues, "enabled",
        {flag("enabled", false).says("Compute eigenvalues."), flag("verbose", false).says("Lines."),
         integer("max_iter", "100").at_least(1).says("Iterations."),
         number("tol", "0.01").says("Tolerance."),
         number("stability", "1e-6").says("Added for stability."),
         integer("gas_boundary_resolution", "1").at_least(1).says("Steps between."),
         text("layer_name", "bert.encoder.layer").says("Name of the layers."),
         integer("layer_num", "0").at_least(0).says("Layers.")}));
  }
  Section legacy = later("quantize_training", Feature::compression, "enabled",
                         {flag("enabled", false).says("Old mixture of quantisation.")});
  legacy.open = true;
  all.push_back(std::move(legacy));
  return all;
}

}  // namespace capstan::config
