// "autotuning": what `capstan tune` and `--autotuning` try, and how.
#include "capstan/config/schema.h"

namespace capstan::config {
namespace {

std::vector<Key> search_keys() {
  return {
      choice("metric", "throughput", {"latency", "throughput", "flops"})
          .says(
              "What is best: the shortest step (latency) or the most samples per second. flops is "
              "the same as throughput, because a sample costs the same in every trial.")
          .costs("latency prefers small batches, unless train_batch_size is given."),
      flag("fast", true)
          .says(
              "Try only stages, micro-batch sizes and what the file lists; other settings only if "
              "nothing fits.")
          .costs("false also tries offloading, recomputation (models of capstan train) and what "
                 "stage 3 keeps whole or gathers ahead: more trials."),
      choice("tuner_type", "model_based", {"gridsearch", "random", "model_based"})
          .says("model_based: start from the configuration and change one setting of the best one "
                "at a time. gridsearch, random: all combinations, in order or not.")
          .costs("model_based needs far fewer trials. DeepSpeed's default is gridsearch."),
      integer("tuner_num_trials", "50").at_least(1).says("Most trials.").costs("More: longer."),
      integer("tuner_early_stopping", "5")
          .at_least(0)
          .says("Stop after this many trials in a row without a gain; 0: never.")
          .costs("More: longer, and may find more."),
      integer("num_tuning_micro_batch_sizes", "3")
          .at_least(1)
          .says("Micro-batch sizes to try with each change of another setting.")
          .costs("More: longer, and may find more."),
      integer("min_train_micro_batch_size_per_gpu", "1")
          .at_least(1)
          .says("Smallest micro-batch to try.")
          .costs("Larger: fewer trials."),
      integer("max_train_micro_batch_size_per_gpu", "1024")
          .at_least(1)
          .says("Largest micro-batch to try.")
          .costs("Smaller: fewer trials."),
      integer("min_train_batch_size", "1")
          .at_least(1)
          .says("Smallest batch of a step, over all ranks.")
          .costs("Larger: fewer trials."),
      integer("max_train_batch_size", "null")
          .at_least(1)
          .says(
              "Each micro-batch size gets as many accumulation steps as make the largest batch up "
              "to this. null: train_batch_size stays as it is, or, if the file does not have it, "
              "gradient_accumulation_steps.")
          .costs("Another batch may need another learning rate."),
      integer("mp_size", "1")
          .at_least(1)
          .says("Ranks per model, if the script splits the model by itself.")
          .costs("Nothing."),
  };
}

std::vector<Key> trial_keys() {
  return {
      flag("enabled", false)
          .own_per_rank()
          .says(
              "The engine writes what it measured to metric_path. `capstan tune` sets both in its "
              "trials; by itself the flag starts no search.")
          .costs("Waits for the device twice."),
      text("metric_path", "null")
          .own_per_rank()
          .says("File for times, throughput and memory of the measured steps, written by rank 0; "
                "set for each trial.")
          .costs("Nothing."),
      integer("start_profile_step", "3")
          .at_least(0)
          .own_per_rank()
          .says("First measured step, counted from 1.")
          .costs("Later: caches are warmer, trials take longer."),
      integer("end_profile_step", "5")
          .at_least(0)
          .own_per_rank()
          .says("Last measured step; a trial ends after it.")
          .costs("Later: steadier figures, trials take longer."),
      text("results_dir", "autotuning_results")
          .says("Folder for results: one per trial, the summary, the best configuration.")
          .costs("Nothing."),
      text("exps_dir", "autotuning_exps")
          .says("Folder for the description of each trial.")
          .costs("Nothing."),
      flag("overwrite", false)
          .says("true: repeat trials that have ended before; false: use their results.")
          .costs("DeepSpeed's default is true."),
      any("arg_mappings", "null")
          .says("Flags of the script that must be set per trial, by key, such as "
                "{\"train_micro_batch_size_per_gpu\": \"--per_device_train_batch_size\"}.")
          .costs("Nothing."),
      text("model_info_path", "null")
          .no_effect("memory is measured by the trials themselves")
          .says("File with facts about the model."),
  };
}

}  // namespace

std::vector<Section> tuning_sections() {
  Section section;
  section.path = "autotuning";
  section.meaning =
      "The search for a fast configuration with `capstan tune` or `--autotuning`. Any value of the "
      "file may then be a list: each of its items is tried; \"stage\": \"all\" stands for the "
      "stages 0 to 3.";
  section.feature = Feature::autotuning;
  section.keys = search_keys();
  for (Key& key : trial_keys()) section.keys.push_back(std::move(key));
  Section model;
  model.path = "autotuning.model_info";
  model.meaning = "Facts about the model.";
  model.feature = Feature::autotuning;
  const char* why = "trials measure what they need";
  model.keys = {flag("profile", false).no_effect(why).says("Find them by a run."),
                integer("num_params", "null").no_effect(why).says("Parameters."),
                integer("hidden_size", "null").no_effect(why).says("Hidden size."),
                integer("num_layers", "null").no_effect(why).says("Layers.")};
  return {section, model};
}

}  // namespace capstan::config
