// Activation checkpointing, the flops profiler, autotuning, monitors.
#include "capstan/config/schema.h"

namespace capstan::config {
namespace {

Section recompute_section() {
  Section section;
  section.path = "activation_checkpointing";
  section.meaning =
      "Activation checkpointing of the models of capstan train and of "
      "deepspeed.checkpointing.checkpoint(). For Hugging Face models, use their "
      "gradient_checkpointing.";
  const std::string_view own = "checkpointing is turned on in the model itself";
  section.keys = {
      integer("number_checkpoints", "null")
          .at_least(1)
          .only_for({Door::program}, Standing::no_effect, own)
          .says("Divide the blocks into this many spans and recompute each during backward; null: "
                "off, unless capstan.recompute is set.")
          .costs("Far less memory for activations, about a third more compute."),
      flag("partition_activations", false)
          .no_effect("kept activations are split over tensor-parallel ranks, and there is only one")
          .says("Split kept activations over tensor-parallel ranks."),
      flag("contiguous_memory_optimization", false)
          .no_effect(
              "kept activations are taken from the allocator's pool, which does not fragment")
          .says("Copy kept activations together."),
      flag("synchronize_checkpoint_boundary", false)
          .own_per_rank()
          .only_for({Door::program, Door::deepspeed_package}, Standing::no_effect, own)
          .says("Wait for the device at each span's edge.")
          .costs("Slower; for measuring."),
      flag("profile", false)
          .own_per_rank()
          .only_for({Door::program, Door::deepspeed_package}, Standing::no_effect, own)
          .says("Time forward and backward of each span; in the package deepspeed, forward.")
          .costs("Waits for the device."),
      flag("cpu_checkpointing", false)
          .own_per_rank()
          .only_for({Door::program, Door::deepspeed_package}, Standing::no_effect, own)
          .needs(Feature::activations_on_host)
          .says("Keep activations in host memory.")
          .costs("Less device memory again; every span is copied out and back."),
  };
  return section;
}

Section flops_section() {
  Section section;
  section.path = "flops_profiler";
  section.meaning =
      "Floating-point operations, parameters and time of every module, measured in one step and "
      "printed by rank 0. Turns wall_clock_breakdown on. See tools.md.";
  section.feature = Feature::flops_profiler;
  section.gate = "enabled";
  section.keys = {
      flag("enabled", false)
          .says("Profile one step.")
          .costs("That step is slower; the others are not."),
      number("recompute_fwd_factor", "0.0")
          .at_least(0)
          .says(
              "Where no recomputation was seen: the fraction of forward that is added to backward. "
              "Recomputation that torch runs is counted.")
          .costs("Nothing."),
      integer("profile_step", "1")
          .also("step")
          .at_least(0)
          .says("How many steps come before the one that is profiled.")
          .costs("Later: caches are warm."),
      integer("module_depth", "-1")
          .at_least(-1)
          .says("Depth of the report in the tree of modules; -1: all of it.")
          .costs("Nothing."),
      integer("top_modules", "1")
          .at_least(0)
          .says("How many classes of modules the summary lists per depth; 0: none.")
          .costs("Nothing."),
      flag("detailed", true).says("Also print a line per module.").costs("A longer report."),
      text("output_file", "null")
          .says("Write the report to this file; null: to the screen.")
          .costs("Nothing."),
  };
  return section;
}

std::vector<Section> autotuning_parts() {
  Section section;
  section.path = "autotuning";
  section.meaning = "Search for a fast configuration.";
  section.feature = Feature::autotuning;
  section.gate = "enabled";
  section.keys = {
      flag("enabled", false).says("Search."),
      flag("fast", true).says("Only the micro-batch size."),
      text("results_dir", "autotuning_results").says("Folder of results."),
      text("exps_dir", "autotuning_exps").says("Folder of experiments."),
      flag("overwrite", true).says("Overwrite old results."),
      integer("start_profile_step", "3").at_least(0).says("First measured step."),
      integer("end_profile_step", "5").at_least(0).says("Last measured step."),
      choice("metric", "throughput", {"latency", "throughput", "flops"}).says("What to make best."),
      text("metric_path", "null").says("File with your own metric."),
      choice("tuner_type", "gridsearch", {"gridsearch", "random", "model_based"})
          .says("How to search."),
      integer("tuner_early_stopping", "5").at_least(0).says("Trials without gain before it stops."),
      integer("tuner_num_trials", "50").at_least(1).says("Most trials."),
      any("arg_mappings", "null").says("Command-line flags to set per trial."),
      integer("max_train_batch_size", "null").at_least(1).says("Largest batch."),
      integer("min_train_batch_size", "1").at_least(1).says("Smallest batch."),
      integer("max_train_micro_batch_size_per_gpu", "1024")
          .at_least(1)
          .says("Largest micro-batch."),
      integer("min_train_micro_batch_size_per_gpu", "1").at_least(1).says("Smallest micro-batch."),
      integer("num_tuning_micro_batch_sizes", "3").at_least(1).says("Micro-batch sizes to try."),
      integer("mp_size", "1").at_least(1).says("Ranks per model."),
      text("model_info_path", "null").says("File with facts about the model."),
  };
  Section model;
  model.path = "autotuning.model_info";
  model.meaning = "Facts about the model.";
  model.feature = Feature::autotuning;
  model.keys = {flag("profile", false).says("Find them by a run."),
                integer("num_params", "null").says("Parameters."),
                integer("hidden_size", "null").says("Hidden size."),
                integer("num_layers", "null").says("Layers.")};
  return {section, model};
}

Section monitor(std::string path, std::vector<Key> keys) {
  Section section;
  section.path = std::move(path);
  section.strict = true;
  section.meaning = "A monitor for curves of learning rate, loss scale and times.";
  section.feature = Feature::monitors;
  section.gate = "enabled";
  section.keys = {flag("enabled", false).says("Write curves there.")};
  for (Key& key : keys) section.keys.push_back(std::move(key));
  return section;
}

std::vector<Key> folder_keys() {
  return {text("output_path", "").says("Folder."),
          text("job_name", "DeepSpeedJobName").says("Name of the run.")};
}

}  // namespace

std::vector<Section> profiling_sections() {
  std::vector<Section> all = {recompute_section(), flops_section()};
  for (Section& section : autotuning_parts()) all.push_back(std::move(section));
  all.push_back(monitor("tensorboard", folder_keys()));
  all.push_back(monitor("csv_monitor", folder_keys()));
  all.push_back(
      monitor("wandb", {text("group", "null").says("Group."), text("team", "null").says("Team."),
                        text("project", "deepspeed").says("Project.")}));
  all.push_back(monitor(
      "comet",
      {integer("samples_log_interval", "100").at_least(1).says("Samples between points."),
       text("project", "null").says("Project."), text("workspace", "null").says("Workspace."),
       text("api_key", "null").says("Key of the service."),
       text("experiment_name", "null").says("Name of the run."),
       text("experiment_key", "null").says("Key of the run."),
       flag("online", false).or_null().says("Send at once."), text("mode", "null").says("Mode.")}));
  return all;
}

}  // namespace capstan::config
