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
      number("min_difficulty", "null").says("Where difficulty starts."),
      number("max_difficulty", "null").says("Where difficulty ends."),
      choice("schedule_type", "null", {"fixed_discrete", "fixed_root", "fixed_linear", "custom"})
          .says("How difficulty grows."),
      any("schedule_config", "null").says("Parameters of the growth.")};
}

std::vector<Section> sampling_sections() {
  std::vector<Key> metric = difficulty_keys();
  for (Key& key : std::vector<Key>{
           text("index_to_sample_path", "null").says("File: metric to samples."),
           text("index_to_metric_path", "null").says("File: sample to metric."),
           choice("difficulty_type", "null", {"value", "percentile"}).says("Unit of difficulty."),
           choice("clustering_type", "null", {"single_cluster", "schedule_based"})
               .says("Clusters.")}) {
    metric.push_back(key);
  }
  const std::string base = "data_efficiency.data_sampling";
  return {
      later(base, Feature::data_efficiency, "enabled",
            {flag("enabled", false).says("Choose samples by difficulty."),
             integer("num_epochs", "1000").at_least(1).says("Epochs."),
             integer("num_workers", "0").at_least(0).says("Worker processes."),
             flag("pin_memory", false).says("Page-locked batches.")}),
      later(base + ".curriculum_learning", Feature::data_efficiency, "enabled",
            {flag("enabled", false).says("From easy to hard."),
             text("data_cluster_path", "null").says("Folder of clusters.")}),
      later(base + ".curriculum_learning.curriculum_metrics", Feature::data_efficiency, "", {}),
      later(base + ".curriculum_learning.curriculum_metrics.*", Feature::data_efficiency, "",
            std::move(metric)),
      later(base + ".dynamic_batching", Feature::data_efficiency, "enabled",
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
      later(base, Feature::data_efficiency, "enabled",
            {flag("enabled", false).says("Drop tokens.")}),
      later(base + ".random_ltd", Feature::data_efficiency, "enabled",
            {flag("enabled", false).says("Drop random tokens in middle layers."),
             integer("total_layer_num", "null").says("Layers."),
             integer("random_ltd_layer_num", "null").says("Layers that drop."),
             any("random_ltd_layer_id", "null").says("Which layers drop."),
             text("model_mask_name", "null").says("Name of the mask argument."),
             text("model_type", "null").says("decoder or encoder."),
             text("hidden_state_order", "null").says("Order of dims.")}),
      later(base + ".random_ltd.random_ltd_schedule", Feature::data_efficiency, "",
            {integer("min_value", "null").says("Tokens at the start."),
             integer("max_value", "null").says("Tokens at the end."),
             choice("schedule_type", "fixed_linear", {"fixed_linear"}).says("How it grows.")}),
      later(base + ".random_ltd.random_ltd_schedule.schedule_config", Feature::data_efficiency, "",
            {integer("require_steps", "null").says("Steps of growth."),
             integer("seq_per_step", "null").says("Tokens per step of growth.")}),
      later(base + ".random_ltd.layer_token_lr_schedule", Feature::data_efficiency, "enabled",
            {flag("enabled", false).says("Learning rate by tokens seen."),
             integer("total_layer_tokens", "null").says("Tokens."),
             integer("warmup_layer_tokens", "null").says("Tokens of warm-up.")}),
  };
}

}  // namespace

std::vector<Section> data_sections() {
  std::vector<Section> all = {later("data_efficiency", Feature::data_efficiency, "enabled",
                                    {flag("enabled", false).says("Choose samples and drop tokens."),
                                     integer("seed", "1234").says("Seed.")})};
  for (Section& section : sampling_sections()) all.push_back(std::move(section));
  for (Section& section : routing_sections()) all.push_back(std::move(section));

  std::vector<Key> curriculum = difficulty_keys();
  curriculum.insert(curriculum.begin(), flag("enabled", false).says("From easy to hard."));
  curriculum.push_back(text("curriculum_type", "seqlen").says("What difficulty means."));
  all.push_back(
      later("curriculum_learning", Feature::curriculum, "enabled", std::move(curriculum)));
  all.push_back(later("progressive_layer_drop", Feature::layer_drop, "enabled",
                      {flag("enabled", false).says("Drop layers at random, more with time."),
                       number("theta", "0.5").at_least(0).at_most(1).says("Share kept at the end."),
                       number("gamma", "0.001").at_least(0).says("Speed.")}));
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
