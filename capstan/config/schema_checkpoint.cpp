// "checkpoint" and other checkpoint engines; "elasticity".
#include "capstan/config/schema.h"

namespace capstan::config {
namespace {

Section elasticity_section() {
  Section section;
  section.path = "elasticity";
  section.meaning = "Batch sizes that fit a changing number of ranks.";
  section.feature = Feature::elasticity;
  section.gate = "enabled";
  section.keys = {
      flag("enabled", false).says("Choose batch sizes elastically."),
      integer("max_train_batch_size", "2000").at_least(1).says("Largest batch."),
      numbers("micro_batch_sizes", "[2, 4, 6]")
          .at_least(1)
          .says("Micro-batch sizes to choose from."),
      integer("min_gpus", "1").at_least(1).says("Fewest ranks."),
      integer("max_gpus", "10000").at_least(1).says("Most ranks."),
      integer("num_gpus_per_node", "1").at_least(1).says("Ranks per node."),
      integer("model_parallel_size", "1").at_least(1).says("Ranks per model."),
      number("min_time", "0").at_least(0).says("Minutes before a change of size."),
      flag("prefer_larger_batch", true).also("prefer_large_batch").says("Prefer the larger batch."),
      flag("ignore_non_elastic_batch_info", false).says("Ignore the three batch keys."),
      number("version", "0.2").says("Version of the algorithm."),
  };
  return section;
}

Section nebula_section() {
  Section section;
  section.path = "nebula";
  section.meaning = "Another checkpoint engine.";
  section.feature = Feature::nebula;
  section.gate = "enabled";
  section.keys = {
      flag("enabled", false).says("Use it."),
      text("persistent_storage_path", "null").says("Where it stores."),
      integer("persistent_time_interval", "100").says("Seconds between stores."),
      integer("num_of_version_in_retention", "2").says("Checkpoints kept."),
      flag("enable_nebula_load", true).says("Load through it."),
      text("nebula_load_path", "null").says("Where it loads from."),
  };
  return section;
}

}  // namespace

std::vector<Section> checkpoint_sections() {
  Section section;
  section.path = "checkpoint";
  section.meaning = "How training state is saved.";
  section.keys = {
      choice("tag_validation", "Warn", {"Ignore", "Warn", "Fail"})
          .ignoring_case()
          .says("What to do if ranks save under different tags: ignore it, warn, or fail.")
          .costs("A small message between the ranks at each save."),
      flag("load_universal", false)
          .says("Without a tag, load the one that the file latest_universal names.")
          .costs("Nothing."),
      flag("use_node_local_storage", false)
          .needs(Feature::checkpoint_options)
          .says("Every node writes to its own disk."),
      flag("checkpoint_serialization", true)
          .says("Serialise with pickle.")
          .no_effect("tensors are never pickled"),
  };
  Section parallel;
  parallel.path = "checkpoint.parallel_write";
  parallel.meaning = "Who writes.";
  parallel.keys = {flag("pipeline_stage", false)
                       .says("Every pipeline stage writes its layers.")
                       .no_effect("every rank writes its own bytes")};
  Section writer;
  writer.path = "checkpoint.writer";
  writer.meaning = "How files are written.";
  writer.keys = {
      choice("type", "fast", {"mock", "python", "fast"})
          .ignoring_case()
          .says("Kind of writer.")
          .no_effect("there is one"),
      flag("decoupled", false)
          .says("Write in the background while training goes on.")
          .costs("Host memory for a copy of what the device holds."),
      integer("io_buffer_size", "67108864")
          .own_per_rank()
          .at_least(4096)
          .says("Bytes of the buffers, at most.")
          .costs("Eight writes of 2 MiB are in flight; more is never taken, less is slower."),
      flag("io_buffer_double", true)
          .own_per_rank()
          .says("Fill one part while others are written.")
          .costs("The buffer twice; faster."),
      flag("show_statistics", false)
          .says("Print what was written.")
          .no_effect("the log says so after every save"),
      choice("data_parallel", "null", {"replica", "socket", "machine"})
          .says("Who shares the writing.")
          .no_effect("all ranks do"),
      integer("io_multiplier", "1")
          .at_least(1)
          .says("Writers per rank.")
          .no_effect("one writer keeps several requests in flight"),
  };
  Section datastates;
  datastates.keys = {
      any("datastates_ckpt", "false").needs(Feature::nebula).says("Another checkpoint engine.")};
  datastates.meaning = "Other checkpoint engines.";
  return {section, parallel, writer, nebula_section(), datastates, elasticity_section()};
}

}  // namespace capstan::config
