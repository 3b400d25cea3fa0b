#include "capstan/engine/ladder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace capstan::engine {
namespace {

using store::Placement;

bool on_disk(const Options& options) {
  return options.store.optimizer.placement == Placement::nvme &&
         options.store.params.placement == Placement::nvme;
}

void offload_optimizer(Options& options, int least_stage) {
  options.shard.stage = std::max(options.shard.stage, least_stage);
  options.shard.reduce_schedule.reset();  // the stage's own: sums leave as backward makes them
  options.store.optimizer.placement = Placement::host;
  options.store.optimizer.ratio = 1.0;
}

bool changes(Rung rung, Options& options, const Ground& ground) {
  shard::Options& shard = options.shard;
  store::Options& store = options.store;
  const bool several = ground.ranks > 1;
  const bool states_here = store.optimizer.placement == Placement::device;
  const bool params_here = store.params.placement == Placement::device;
  switch (rung) {
    case Rung::micro_batch:
      options.batch.accumulation_steps *= options.batch.micro_samples;
      return std::exchange(options.batch.micro_samples, 1) > 1;
    case Rung::recompute:
      return !std::exchange(options.recompute.enabled, true);
    case Rung::stage2:
      if (!several || shard.stage >= 2) return false;
      shard.stage = 2;
      shard.reduce_schedule.reset();
      return true;
    case Rung::offload_optimizer:
      if (!ground.on_gpu || !states_here || shard.stage > 2) return false;
      offload_optimizer(options, 2);
      return true;
    case Rung::stage3:
      if (!several || shard.stage == 3) return false;
      shard.stage = 3;
      shard.reduce_schedule.reset();
      return true;
    case Rung::offload_params:
      if (!ground.on_gpu || !params_here) return false;
      shard.stage = 3;
      store.params.placement = Placement::host;
      return true;
    case Rung::offload_both:
      if (!ground.on_gpu || !states_here) return false;
      offload_optimizer(options, 3);
      if (params_here) store.params.placement = Placement::host;
      return true;
    case Rung::limits: {
      // What is whole anyway takes no memory of its own.
      if (shard.stage < 3 || (!several && params_here)) return false;
      const auto before = shard.prefetch_bytes + shard.max_reuse_bytes;
      shard.prefetch_bytes = shard.max_reuse_bytes = 0;
      return before > 0;
    }
    case Rung::half_precision:
      return std::exchange(options.precision.params, DType::bf16) == DType::fp32;
    case Rung::nvme:
      if (on_disk(options)) return false;
      shard.stage = 3;
      store.optimizer.placement = store.params.placement = Placement::nvme;
      store.optimizer.nvme_paths = store.params.nvme_paths = ground.nvme_paths;
      return true;
  }
  return false;
}

}  // namespace

std::vector<Rung> ladder() {
  return {
      Rung::micro_batch,    Rung::recompute,    Rung::stage2, Rung::offload_optimizer, Rung::stage3,
      Rung::offload_params, Rung::offload_both, Rung::limits, Rung::half_precision,    Rung::nvme};
}

std::string_view to_string(Rung rung) {
  switch (rung) {
    case Rung::micro_batch:
      return "micro-batch 1";
    case Rung::recompute:
      return "recompute";
    case Rung::stage2:
      return "stage 2";
    case Rung::offload_optimizer:
      return "stage 2 + offload optimizer";
    case Rung::stage3:
      return "stage 3";
    case Rung::offload_params:
      return "stage 3 + offload parameters";
    case Rung::offload_both:
      return "stage 3 + offload both";
    case Rung::limits:
      return "no prefetch, no reuse";
    case Rung::half_precision:
      return "16 bits";
    case Rung::nvme:
      break;
  }
  return "both on disks";
}

std::optional<Options> take(Rung rung, const Options& options, const Ground& ground) {
  Options next = options;
  if (!changes(rung, next, ground)) return std::nullopt;
  return next;
}

std::string advice(Rung rung, const Options& options) {
  const OptionNames& names = options.names;
  const std::string optimizer = names("store.optimizer.placement");
  const std::string params = names("store.params.placement");
  switch (rung) {
    case Rung::micro_batch:
      return fmt::format("halve the micro-batch ({} is {}) and double {}",
                         names("batch.micro_samples"), options.batch.micro_samples,
                         names("batch.accumulation_steps"));
    case Rung::recompute:
      return "keep fewer activations: compute each block again in backward (activation "
             "checkpointing)";
    case Rung::stage2:
      return "shard the gradients: " + names("shard.stage") + " 2";
    case Rung::offload_optimizer:
      return fmt::format("move the optimizer to host memory: {} 2 and {} \"{}\"",
                         names("shard.stage"), optimizer, names("host"));
    case Rung::stage3:
      return "shard the parameters: " + names("shard.stage") + " 3";
    case Rung::offload_params:
      return fmt::format("move the parameters to host memory: {} 3 and {} \"{}\"",
                         names("shard.stage"), params, names("host"));
    case Rung::offload_both:
      return fmt::format("move the optimizer to host memory too: {} \"{}\"", optimizer,
                         names("host"));
    case Rung::limits:
      return fmt::format("keep fewer units whole: lower {} and {}, to 0 if need be",
                         names("shard.max_reuse_bytes"), names("shard.prefetch_bytes"));
    case Rung::half_precision:
      return fmt::format("train in 16 bits: {}", names("precision.params"));
    case Rung::nvme:
      break;
  }
  return fmt::format(
      "use more ranks, so that every shard gets smaller, or keep states on a fast disk: {} and {} "
      "\"nvme\" at {} 3",
      optimizer, params, names("shard.stage"));
}

std::string next_saving(const Options& options, const Ground& ground) {
  Options now = options;
  std::string first;
  for (const Rung rung : ladder()) {
    std::optional<Options> next = take(rung, now, ground);
    if (!next) continue;
    if (!first.empty())
      return fmt::format("{}. If that is so already: {}", first, advice(rung, now));
    if (rung != Rung::recompute) return advice(rung, now);
    first = advice(rung, now);
    now = *std::move(next);
  }
  return first.empty() ? "use more ranks: every shard gets smaller" : first;
}

}  // namespace capstan::engine
