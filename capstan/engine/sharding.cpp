#include "capstan/engine/sharding.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/optim/update.h"
#include "capstan/shard/policy.h"

namespace capstan::engine {
namespace {

// Of an update on the host. (Chosen: long enough for full speed of the link, short enough that the
// last one hardly delays the end.)
constexpr std::int64_t kPieceElems = std::int64_t{1} << 23;

// Over everybody, where a second copy serves those near by; else inside of the shard groups.
shard::UnitAxes axes_of(const shard::Options& options, const layout::Mesh& mesh) {
  if (!keeps_near(options, mesh.size(layout::kDataAxes))) return {};
  const shard::UnitAxes hybrid;
  return {.cut = hybrid.all(), .summed = {}, .near = hybrid.cut};
}

}  // namespace

Averaging averaging(const comm::Options& options, int ranks) {
  if (options.reduce_op == comm::ReduceOp::sum) return {};
  if (options.prescale_gradients) return {1.0 / ranks, 1.0};
  return {1.0 / options.predivide_factor, options.predivide_factor / ranks};
}

layout::Mesh make_mesh(const Options& options, int ranks) {
  const MeshOptions& mesh = options.mesh;
  const int sharing = mesh.product();
  if (mesh.pipe < 1 || mesh.sequence < 1 || mesh.tensor < 1 || ranks % sharing != 0) {
    throw ConfigError({.what = fmt::format(
                           "a mesh of {} (pipe) x {} (sequence) x {} (tensor) has no place for {}",
                           mesh.pipe, mesh.sequence, mesh.tensor, counted(ranks, "rank")),
                       .where = options.names("mesh"),
                       .fix = fmt::format("start a multiple of {}, or make these smaller",
                                          counted(std::max(1, sharing), "rank"))});
  }
  const int data = ranks / sharing;
  const bool near = keeps_near(options.shard, data);
  const int shards = near                            ? options.shard.near_ranks
                     : options.shard.shard_ranks > 0 ? options.shard.shard_ranks
                                                     : data;
  if (near && options.shard.shard_ranks > 0) {
    throw ConfigError({.what = "shard groups and a second copy of the parameters were both asked "
                               "for; each says where shards end",
                       .where = "shard groups",
                       .fix = "choose one of the two"});
  }
  if (shards > data || data % shards != 0) {
    throw ConfigError(
        {.what = fmt::format("{} do not form groups of {}",
                             counted(data, sharing > 1 ? "data-parallel rank" : "rank"), shards),
         .where = "shard groups",
         .fix = "use a group size that divides the number of ranks"});
  }
  return layout::Mesh({.pipe = mesh.pipe,
                       .replica = data / shards,
                       .shard = shards,
                       .sequence = mesh.sequence,
                       .tensor = mesh.tensor},
                      ranks);
}

bool keeps_near(const shard::Options& options, int ranks) {
  return policy_for(options).params == shard::Gather::per_use && options.near_ranks > 1 &&
         options.near_ranks < ranks;
}

shard::PlanOptions plan_options(const Options& options, const layout::Mesh& mesh,
                                std::int64_t align_bytes) {
  shard::UnitAxes axes = axes_of(options.shard, mesh);
  axes.copies = mesh.longer_than_one(layout::Axis::tensor);
  return {.shards = mesh.size(axes.cut),
          .axes = axes,
          .near_shards = axes.near.empty() ? 0 : mesh.size(axes.near),
          .align_bytes = align_bytes,
          .persistence_threshold_elems = options.shard.persistence_threshold_elems,
          .persistence_total_elems = options.shard.persistence_total_elems};
}

shard::StateSettings state_settings(const Options& options) {
  shard::StateSettings settings{.master = options.precision.master,
                                .moments = options.precision.optimizer_state};
  if (!options.optimizer.has_value()) return settings;
  const optim::Options& optimizer = *options.optimizer;
  const auto take = [&settings, &optimizer](const optim::HyperParams& hyper) {
    const auto names = optim::state_names(optimizer.kind, hyper);
    if (names.size() > settings.moment_names.size()) {
      settings.moment_names.assign(names.begin(), names.end());
    }
    settings.initial_moment = optim::initial_state(optimizer.kind, hyper);
  };
  for (const optim::Group& group : optimizer.groups) take(group.hyper);
  take(optimizer.hyper);
  return settings;
}

shard::Settings shard_settings(const Options& options, const layout::Mesh& mesh,
                               const shard::StateSettings& states) {
  const shard::Policy policy = shard::policy_for(options.shard);
  const store::OptimizerOptions& optimizer = options.store.optimizer;
  const store::ParamOptions& params = options.store.params;
  const bool off_device = optimizer.placement != store::Placement::device;
  const bool early = optimizer.early_updates != store::EarlyUpdates::never;
  return {
      .policy = policy,
      .limits = {.prefetch_bytes = options.shard.overlap_comm ? options.shard.prefetch_bytes : 0,
                 .max_live_bytes = options.shard.max_live_bytes,
                 .max_reuse_bytes = options.shard.max_reuse_bytes},
      .reduce = {.schedule = policy.reduce,
                 .accum = options.precision.grad_accum,
                 .travel = options.precision.reduce_dtype(),
                 .before_sum = averaging(options.comm, mesh.size(layout::kDataAxes)).before_sum,
                 .overlap = options.shard.overlap_comm,
                 .blocks_of = options.comm.reduce_in_blocks_of},
      .states = states,
      .host = {.homes = {.optimizer = {optimizer.placement, optimizer.ratio, optimizer.pin,
                                       optimizer.nvme_paths},
                         .params = {params.placement, 1.0, params.pin, params.nvme_paths}},
               .read_ahead = {options.io, params.buffer_count * params.buffer_bytes},
               .streams = {options.io, optimizer.buffer_count},
               .late_updates = off_device && optimizer.late_updates.value_or(
                                                 policy.params == shard::Gather::per_use),
               .early_bytes = optimizer.placement == store::Placement::host && early
                                  ? optimizer.early_bytes
                                  : 0,
               .piece_elems = std::min(kPieceElems, options.shard.sub_group_elems),
               .out_of_memory_advice = fmt::format(
                   "offload less ({}), use more ranks, free host memory, or move what is "
                   "offloaded to a fast disk ({} \"nvme\")",
                   options.names("store.optimizer.ratio"),
                   options.names("store.optimizer.placement"))},
      .unused = options.shard.unused_parameters,
      .check_ranks = options.shard.check_ranks,
      .names = options.names};
}

}  // namespace capstan::engine
