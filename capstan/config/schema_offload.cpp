// Where state lives: offload sections, file I/O, ZenFlow.
#include "capstan/config/schema.h"

namespace capstan::config {
namespace {

Section optimizer_offload() {
  Section section;
  section.path = "zero_optimization.offload_optimizer";
  section.strict = true;
  section.meaning = "Where master weights and optimizer state live; the update runs there.";
  section.keys = {
      choice("device", "none", {"none", "cpu", "nvme"})
          .automatic("Accelerate: its plugin's value; elsewhere none")
          .value_needs_feature("cpu", Feature::optimizer_on_host)
          .value_needs_feature("nvme", Feature::optimizer_on_nvme)
          .says("none: the device. cpu: host memory. nvme: a disk.")
          .costs("Frees 12 bytes per parameter of the shard; the step waits for host or disk."),
      text("nvme_path", "null")
          .own_per_rank()
          .idle_without(Feature::optimizer_on_nvme)
          .automatic("Accelerate: its plugin's value; elsewhere none")
          .says("A folder on a fast disk; several, separated by commas, are used in parallel.")
          .costs("Needs 12 bytes per parameter of free space."),
      integer("buffer_count", "4")
          .own_per_rank()
          .at_least(1)
          .idle_without(Feature::optimizer_on_nvme)
          .says("nvme: number of tiles in host memory; one is updated while others are read and "
                "written. At least 3.")
          .costs("More: reads further ahead; 100 MB each with AdamW."),
      flag("pin_memory", true)
          .own_per_rank()
          .idle_without(Feature::optimizer_on_host)
          .says("Page-locked host memory.")
          .costs("Faster copies; other programs cannot use that memory."),
      flag("pipeline_read", false)
          .says("Read ahead.")
          .no_effect("states on nvme are always read ahead of their update"),
      flag("pipeline_write", false)
          .says("Write behind.")
          .no_effect("states on nvme are always written behind their update"),
      flag("fast_init", false)
          .says("Make masters from 16-bit shards on nvme.")
          .no_effect("masters are made from the values that the model has"),
      number("ratio", "1.0")
          .at_least(0)
          .at_most(1)
          .needs(Feature::optimizer_on_host)
          .automatic("only what the device cannot hold: states first, then offloaded parameters")
          .says("Share of the elements whose optimizer state is offloaded.")
          .costs("Smaller: faster, more device memory."),
      flag("super_offload", false)
          .needs(Feature::optimizer_in_backward)
          .says("Run the optimizer while backward is still running; the same as "
                "capstan.early_updates: always.")
          .costs("The same."),
      number("cpuadam_cores_perc", "0.8")
          .own_per_rank()
          .at_least(0)
          .at_most(1)
          .idle_without(Feature::optimizer_in_backward)
          .says("super_offload: share of the cores for the update.")
          .costs("More: a faster update, less for the thread that launches backward."),
  };
  return section;
}

Section param_offload() {
  Section section;
  section.path = "zero_optimization.offload_param";
  section.strict = true;
  section.meaning = "Where parameter shards live between uses.";
  section.keys = {
      choice("device", "none", {"none", "cpu", "nvme"})
          .automatic("Accelerate: its plugin's value; elsewhere none")
          .value_needs_feature("cpu", Feature::params_on_host)
          .value_needs_feature("nvme", Feature::params_on_nvme)
          .says("none: the device. cpu: host memory. nvme: a disk.")
          .costs("Frees 2 bytes per parameter of the shard; every gather starts with a copy."),
      text("nvme_path", "null")
          .own_per_rank()
          .idle_without(Feature::params_on_nvme)
          .automatic("Accelerate: its plugin's value; elsewhere none")
          .says("A folder on a fast disk; several, separated by commas, are used in parallel.")
          .costs("Needs 2 bytes per parameter of free space."),
      integer("buffer_count", "5")
          .own_per_rank()
          .at_least(1)
          .idle_without(Feature::params_on_nvme)
          .says("nvme: this times buffer_size elements may be read ahead of use.")
          .costs("More: better overlap, more host memory."),
      integer("buffer_size", "100000000")
          .own_per_rank()
          .at_least(1)
          .idle_without(Feature::params_on_nvme)
          .says("nvme: elements; see buffer_count.")
          .costs("See buffer_count. A larger shard is read when it is used."),
      integer("max_in_cpu", "1000000000")
          .at_least(0)
          .says("Shard elements that stay in host memory.")
          .no_effect("the page cache keeps as many as free host memory holds"),
      flag("pin_memory", true)
          .own_per_rank()
          .idle_without(Feature::params_on_host)
          .says("Page-locked host memory.")
          .costs("Faster copies; other programs cannot use that memory."),
  };
  return section;
}

Section zenflow_section() {
  Section section;
  section.path = "zero_optimization.zenflow";
  section.strict = true;
  section.meaning = "Update important gradient columns at once, the rest later on the host.";
  section.feature = Feature::zenflow;
  section.presence = Presence::on;
  section.keys = {
      number("topk_ratio", "0.1").at_least(0).at_most(1).says("Share updated at once."),
      choice("select_strategy", "auto", {"auto", "step", "epoch"}).says("When columns are chosen."),
      integer("select_interval", "null").says("Steps or epochs between choices."),
      integer("update_interval", "null").says("Steps between updates of the rest."),
      flag("overlap_step", false).says("Host step beside forward and backward."),
      flag("offload", false).says("Selected state in host memory."),
      number("auto_ratio", "0.99").at_least(0).at_most(1).says("Threshold of the automatic rule."),
      integer("full_warm_up_rounds", "0").at_least(0).says("First rounds with full updates."),
      number("pt_reserved_cores_perc", "0.5").at_least(0).at_most(1).says("Cores kept free."),
  };
  return section;
}

Section aio_section() {
  Section section;
  section.path = "aio";
  section.meaning = "File I/O of nvme placements.";
  section.keys = {
      integer("block_size", "1048576")
          .own_per_rank()
          .at_least(4096)
          .idle_without(Feature::optimizer_on_nvme)
          .says("Bytes per request.")
          .costs("Larger: faster up to the disk's limit."),
      integer("queue_depth", "8")
          .own_per_rank()
          .at_least(1)
          .at_most(4096)
          .idle_without(Feature::optimizer_on_nvme)
          .says("Requests in flight.")
          .costs("More: better overlap, more memory."),
      integer("intra_op_parallelism", "1")
          .own_per_rank()
          .at_least(1)
          .at_most(1024)
          .also("thread_count")
          .idle_without(Feature::optimizer_on_nvme)
          .says("Threads, if io_uring is not available.")
          .costs("More: faster on fast disks."),
      flag("single_submit", false)
          .own_per_rank()
          .idle_without(Feature::optimizer_on_nvme)
          .says("Submit one by one.")
          .costs("Slower."),
      flag("overlap_events", true)
          .own_per_rank()
          .idle_without(Feature::optimizer_on_nvme)
          .says("Collect finished requests while submitting.")
          .costs("false is slower."),
      flag("use_gds", false)
          .refused("files are read through host memory")
          .says("Read straight into device memory."),
  };
  return section;
}

}  // namespace

std::vector<Section> offload_sections() {
  return {optimizer_offload(), param_offload(), zenflow_section(), aio_section()};
}

}  // namespace capstan::config
