#include "capstan/config/apply.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "capstan/base/text.h"
#include "capstan/config/option_names.h"

namespace capstan::config {
namespace {

// Upstream counts elements; limits here are bytes of the parameters' dtype. Saturates.
std::int64_t elems_to_bytes(std::int64_t elems, DType dtype) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(elems, size_bytes(dtype), &bytes)) {
    return std::numeric_limits<std::int64_t>::max();
  }
  return bytes;
}

// Counts that steer buffers and threads; the schema bounds those where more makes no sense.
int to_int(std::int64_t value) {
  return static_cast<int>(std::min<std::int64_t>(value, std::numeric_limits<int>::max()));
}

store::Placement to_placement(const std::string& device, bool deprecated_flag) {
  if (device == "nvme") return store::Placement::nvme;
  return device == "cpu" || deprecated_flag ? store::Placement::host : store::Placement::device;
}

LogLevel to_log_level(const std::string& name) {
  if (name == "debug") return LogLevel::debug;
  if (name == "warning") return LogLevel::warning;
  return name == "error" || name == "critical" ? LogLevel::error : LogLevel::info;
}

comm::Options to_comm(const Table& table) {
  comm::Options options;
  const std::string backend = table.text("capstan.backend");
  if (backend == "nccl") options.backend = comm::BackendKind::nccl;
  if (backend == "mpi") options.backend = comm::BackendKind::mpi;
  options.timeout = std::chrono::seconds(table.integer("capstan.timeout_s"));
  options.reduce_in_rank_order = table.flag("capstan.reduce_in_rank_order");
  options.reduce_in_blocks_of = to_int(table.integer("capstan.reduce_in_blocks_of"));
  options.reduce_op =
      table.text("gradient_allreduce_op") == "sum" ? comm::ReduceOp::sum : comm::ReduceOp::mean;
  options.prescale_gradients = table.flag("prescale_gradients");
  options.predivide_factor = table.number("gradient_predivide_factor");
  return options;
}

io::Options to_io(const Table& table) {
  return {.block_bytes = table.integer("aio.block_size"),
          .queue_depth = to_int(table.integer("aio.queue_depth")),
          .threads = to_int(table.integer("aio.intra_op_parallelism")),
          .single_submit = table.flag("aio.single_submit"),
          .overlap_events = table.flag("aio.overlap_events")};
}

pipeline::Options to_pipeline(const Table& table) {
  const std::string schedule = table.text("capstan.pipeline_schedule");
  if (schedule == "gpipe") return {.schedule = pipeline::Kind::gpipe};
  if (schedule == "zb-h1") return {.schedule = pipeline::Kind::zb_h1};
  return {};
}

recompute::Options to_recompute(const Table& table) {
  recompute::Options options;
  if (const auto count = table.maybe_integer("activation_checkpointing.number_checkpoints")) {
    options.checkpoint_count = to_int(*count);
  }
  options.span_blocks = to_int(table.integer("pipeline.activation_checkpoint_interval"));
  options.enabled = table.flag("capstan.recompute") || options.checkpoint_count.has_value() ||
                    options.span_blocks > 0;
  options.to_host = table.flag("activation_checkpointing.cpu_checkpointing");
  options.synchronize = table.flag("activation_checkpointing.synchronize_checkpoint_boundary");
  options.profile = table.flag("activation_checkpointing.profile");
  return options;
}

checkpoint::Options to_checkpoint(const Table& table) {
  checkpoint::Options options;
  const std::string tags = table.text("checkpoint.tag_validation");
  if (tags == "Ignore") options.tag_validation = checkpoint::TagValidation::ignore;
  if (tags == "Fail") options.tag_validation = checkpoint::TagValidation::fail;
  options.load_universal = table.flag("checkpoint.load_universal");
  options.load_from_fp32_weights = table.flag("zero_optimization.load_from_fp32_weights");
  options.asynchronous = table.flag("checkpoint.writer.decoupled");
  options.buffer_bytes = table.integer("checkpoint.writer.io_buffer_size");
  options.double_buffer = table.flag("checkpoint.writer.io_buffer_double");
  return options;
}

}  // namespace

shard::Options to_shard(const Table& table) {
  const auto zero = [](const char* name) { return join_path("zero_optimization", name); };
  const DType params = param_dtype(table);
  const auto bytes = [&](const char* name) {
    return elems_to_bytes(table.integer(zero(name)), params);
  };
  shard::Options options;
  options.stage = to_int(table.integer(zero("stage")));
  const std::string schedule = table.text("capstan.reduce_schedule");
  if (schedule == "at_step") options.reduce_schedule = shard::ReduceSchedule::at_step;
  if (schedule == "per_backward") options.reduce_schedule = shard::ReduceSchedule::per_backward;
  options.persistence_threshold_elems = table.integer(zero("stage3_param_persistence_threshold"));
  options.persistence_total_elems = table.integer(zero("stage3_model_persistence_threshold"));
  options.prefetch_bytes = bytes("stage3_prefetch_bucket_size");
  options.max_live_bytes = bytes("stage3_max_live_parameters");
  options.max_reuse_bytes = bytes("stage3_max_reuse_distance");
  options.overlap_comm = table.is_null(zero("overlap_comm")) || table.flag(zero("overlap_comm"));
  options.shard_ranks = std::max(0, to_int(table.integer(zero("mics_shard_size"))));
  options.near_ranks = to_int(table.integer(zero("zero_hpz_partition_size")));
  options.sub_group_elems = table.integer(zero("sub_group_size"));
  options.unit_granularity_elems = table.integer(zero("stage3_module_granularity_threshold"));
  options.unit_names = table.texts("capstan.units");
  options.leaf_modules = {.classes = table.texts(zero("leaf_module.classes")),
                          .names = table.texts(zero("leaf_module.names")),
                          .name_suffixes = table.texts(zero("leaf_module.name_suffixes"))};
  options.unused_parameters = table.flag(zero("ignore_unused_parameters"))
                                  ? shard::UnusedParameters::allow
                                  : shard::UnusedParameters::error;
  options.check_ranks = table.flag(zero("enable_sanity_checks"));
  options.log_trace_changes = table.flag(zero("log_trace_cache_warnings"));
  return options;
}

namespace {

std::vector<std::string> to_folders(const std::string& text) {
  std::vector<std::string> folders;
  for (const std::string& folder : split(text, ',')) {
    if (!trim(folder).empty()) folders.emplace_back(trim(folder));
  }
  return folders;
}

}  // namespace

store::Placement optimizer_placement(const Table& table) {
  return to_placement(table.text("zero_optimization.offload_optimizer.device"),
                      table.flag("zero_optimization.cpu_offload"));
}

bool may_write_gathered(const Table& table) {
  const std::string checks = "zero_optimization.enable_sanity_checks";
  return table.given(checks) && !table.flag(checks);  // its default is no answer
}

bool asks_for_reports(const Table& table) {
  const profile::Options profile = to_profile(table);
  return profile.steps_per_print > 0 || profile.wall_clock_breakdown || profile.memory_breakdown ||
         profile.comms.enabled || !profile.trace.folder.empty() || table.flag("dump_state") ||
         table.flag("zero_optimization.log_trace_cache_warnings");
}

store::Options to_store(const Table& table) {
  const auto param = [](const char* name) {
    return join_path("zero_optimization.offload_param", name);
  };
  const auto optim = [](const char* name) {
    return join_path("zero_optimization.offload_optimizer", name);
  };
  const DType params = param_dtype(table);
  store::Options options;
  options.params = {.placement = to_placement(table.text(param("device")),
                                              table.flag("zero_optimization.cpu_offload_param")),
                    .pin = table.flag(param("pin_memory")),
                    .nvme_paths = to_folders(table.text(param("nvme_path"))),
                    .buffer_count = to_int(table.integer(param("buffer_count"))),
                    .buffer_bytes = elems_to_bytes(table.integer(param("buffer_size")), params)};
  options.optimizer = {
      .placement = optimizer_placement(table),
      .pin = table.flag(optim("pin_memory")),
      .nvme_paths = to_folders(table.text(optim("nvme_path"))),
      .buffer_count = to_int(table.integer(optim("buffer_count"))),
      .ratio = table.number(optim("ratio")),
      .auto_ratio = table.find(optim("ratio"))->origin.kind == OriginKind::automatic};
  const std::string early = table.text("capstan.early_updates");
  if (early == "always") options.optimizer.early_updates = store::EarlyUpdates::always;
  if (early == "measured") options.optimizer.early_updates = store::EarlyUpdates::measured;
  if (table.flag(optim("super_offload"))) {
    options.optimizer.early_updates = store::EarlyUpdates::always;
    options.optimizer.core_share = table.number(optim("cpuadam_cores_perc"));
  }
  options.optimizer.early_bytes = table.integer("capstan.early_updates_bytes");
  options.device_bytes = table.maybe_integer("capstan.device_bytes");
  options.activation_bytes = table.integer("capstan.activation_bytes");
  const std::string late = table.text("capstan.late_updates");
  if (!late.empty()) options.optimizer.late_updates = late == "always";
  // Below these stages there are no shards to place; the rules say so.
  const std::int64_t stage = table.integer("zero_optimization.stage");
  if (stage < 1) options.optimizer.placement = store::Placement::device;
  if (stage < 3) options.params.placement = store::Placement::device;
  return options;
}

profile::Options to_profile(const Table& table) {
  profile::Options options;
  if (!table.is_null("steps_per_print")) {
    const double steps = table.number("steps_per_print");
    // Infinity, as Accelerate sets it, means never; a fraction means every step.
    options.steps_per_print = steps > 9e18 ? 0 : static_cast<std::int64_t>(std::ceil(steps));
  }
  options.flops = {.enabled = table.flag("flops_profiler.enabled"),
                   .recompute_factor = table.number("flops_profiler.recompute_fwd_factor"),
                   .step = table.integer("flops_profiler.profile_step"),
                   .depth = to_int(table.integer("flops_profiler.module_depth")),
                   .top_modules = to_int(table.integer("flops_profiler.top_modules")),
                   .detailed = table.flag("flops_profiler.detailed"),
                   .output_file = table.text("flops_profiler.output_file")};
  const std::vector<double> steps = table.numbers("capstan.trace.steps");
  options.trace.folder = table.text("capstan.trace.folder");
  if (steps.size() == 2) {  // the rules say so of others
    options.trace.first_step = static_cast<std::int64_t>(steps[0]);
    options.trace.last_step = static_cast<std::int64_t>(steps[1]);
  }
  options.wall_clock_breakdown = table.flag("wall_clock_breakdown") || options.flops.enabled;
  options.memory_breakdown = table.flag("memory_breakdown");
  options.find_nan = table.flag("capstan.find_nan");
  options.throughput = table.flag("timers.throughput.enabled");
  options.comms = {.enabled = table.flag("comms_logger.enabled"),
                   .all_ops = table.flag("comms_logger.prof_all"),
                   .ops = table.texts("comms_logger.prof_ops"),
                   .verbose = table.flag("comms_logger.verbose"),
                   .debug = table.flag("comms_logger.debug")};
  options.trial = {
      .first_step = std::max<std::int64_t>(1, table.integer("autotuning.start_profile_step")),
      .last_step = std::max<std::int64_t>(1, table.integer("autotuning.end_profile_step"))};
  if (table.flag("autotuning.enabled")) options.trial.file = table.text("autotuning.metric_path");
  return options;
}

monitor::Options to_monitor(const Table& table) {
  const auto folder = [&](const char* section) {
    return monitor::FolderOptions{.enabled = table.flag(join_path(section, "enabled")),
                                  .output_path = table.text(join_path(section, "output_path")),
                                  .job_name = table.text(join_path(section, "job_name"))};
  };
  return {.metrics = table.text("capstan.metrics"),
          .csv = folder("csv_monitor"),
          .tensorboard = folder("tensorboard"),
          .others = table.flag("wandb.enabled") || table.flag("comet.enabled")};
}

engine::Options to_engine(const Table& table) {
  engine::Options options;
  options.batch = {.train_samples = table.integer("train_batch_size"),
                   .micro_samples = table.integer("train_micro_batch_size_per_gpu"),
                   .accumulation_steps = table.integer("gradient_accumulation_steps"),
                   .managed_accumulation = table.flag("managed_gradient_accumulation")};
  options.mesh.pipe = to_int(table.maybe_integer("pipeline.stages").value_or(1));
  options.mesh.sequence = to_int(table.integer("sequence_parallel_size"));
  options.mesh.tensor = std::max(1, to_int(table.integer("tensor_parallel.autotp_size")));
  options.pipeline = to_pipeline(table);
  options.gradient_clipping = std::max(0.0, table.number("gradient_clipping"));
  options.log_level = to_log_level(table.text("log_level"));
  options.optimizer = to_optimizer(table);
  options.schedule = to_schedule(table);
  options.precision = to_precision(table);
  options.shard = to_shard(table);
  options.store = to_store(table);
  options.comm = to_comm(table);
  options.io = to_io(table);
  options.recompute = to_recompute(table);
  options.profile = to_profile(table);
  options.monitor = to_monitor(table);
  options.checkpoint = to_checkpoint(table);
  options.names = option_names();
  options.shard.names = options.names;
  return options;
}

data::Options to_data(const Table& table) {
  return {.drop_last = table.flag("dataloader_drop_last"),
          .seed = static_cast<std::uint64_t>(table.integer("capstan.seed"))};
}

}  // namespace capstan::config
