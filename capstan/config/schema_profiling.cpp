// Activation checkpointing, the flops profiler, monitors.
#include <utility>

#include <fmt/format.h>

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

Section monitor(std::string path, std::string_view where, std::vector<Key> keys) {
  Section section;
  section.path = std::move(path);
  section.strict = true;
  section.meaning = fmt::format(
      "Curves of loss, learning rate, loss scale, times, speed and memory, {}, written by rank 0.",
      where);
  section.feature = Feature::monitors;
  section.gate = "enabled";
  section.keys = {flag("enabled", false)
                      .says("Write curves there.")
                      .costs("Reads the loss once per step; adds one small collective.")};
  for (Key& key : keys) {
    key.own_per_rank().costs("Nothing.");
    section.keys.push_back(std::move(key));
  }
  return section;
}

std::vector<Key> folder_keys() {
  return {text("output_path", "").says("Folder; empty: where the program was started."),
          text("job_name", "DeepSpeedJobName").says("Name of the run: a folder inside it.")};
}

// Of a service whose client is a package of Python.
Section python_monitor(std::string path, std::string_view where, std::vector<Key> keys) {
  Section section = monitor(std::move(path), where, std::move(keys));
  for (Key& key : section.keys) {
    const Standing others = key.name == "enabled" ? Standing::refused : Standing::no_effect;
    key.only_for({Door::capstan_package, Door::deepspeed_package}, others,
                 "its client is a Python package; capstan train has tensorboard, csv_monitor and "
                 "--page");
  }
  return section;
}

}  // namespace

std::vector<Section> profiling_sections() {
  std::vector<Section> all = {recompute_section(), flops_section()};
  all.push_back(monitor("tensorboard", "for TensorBoard", folder_keys()));
  all.push_back(monitor("csv_monitor", "as a CSV file each", folder_keys()));
  all.push_back(
      python_monitor("wandb", "with Weights & Biases (package wandb)",
                     {text("group", "null").says("Group."), text("team", "null").says("Team."),
                      text("project", "deepspeed").says("Project.")}));
  Key online = flag("online", false).or_null().says("Send at once; null: as Comet is set up.");
  online.fallback = "null";
  all.push_back(python_monitor(
      "comet", "with Comet (package comet_ml)",
      {integer("samples_log_interval", "100")
           .at_least(1)
           .says("Samples between two points of a curve."),
       text("project", "null").says("Project."), text("workspace", "null").says("Workspace."),
       text("api_key", "null").says("Key of the service."),
       text("experiment_name", "null").says("Name of the run."),
       text("experiment_key", "null").says("Key of the run."), online,
       text("mode", "null").says("get, create or get_or_create; null: get_or_create.")}));
  return all;
}

}  // namespace capstan::config
