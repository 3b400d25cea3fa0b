// How one model is sharded: the engine's options as the core takes them. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capstan/base/dtype.h"
#include "capstan/base/option_names.h"
#include "capstan/shard/homes.h"
#include "capstan/shard/policy.h"
#include "capstan/store/stream_options.h"

namespace capstan::shard {

// Bytes of whole units that are not resident.
struct GatherLimits {
  std::int64_t prefetch_bytes = 0;   // gathered ahead and not yet used
  std::int64_t max_live_bytes = 0;   // above it nothing is prefetched or kept for later
  std::int64_t max_reuse_bytes = 0;  // a unit whose next use is nearer than this stays whole
};

struct ReduceSettings {
  ReduceSchedule schedule = ReduceSchedule::at_step;
  DType accum = DType::fp32;   // of sums: local ones and our shard
  DType travel = DType::fp32;  // on the wire
  double before_sum = 1.0;     // every gradient is multiplied by this before it travels
  bool overlap = true;         // false: wait for each reduction where it is issued
  int blocks_of = 1;           // as comm::ReduceOptions
};

// The optimizer's side of a unit.
struct StateSettings {
  DType master = DType::fp32;
  DType moments = DType::fp32;
  std::vector<std::string> moment_names;  // e.g. exp_avg, exp_avg_sq
  double initial_moment = 0;
};

// Never narrower than the parameters themselves.
constexpr DType master_dtype(const StateSettings& settings, DType params) {
  return size_bytes(params) > size_bytes(settings.master) ? params : settings.master;
}

// What lives in host memory or on disks instead of the device.
struct HostSettings {
  Homes homes;
  store::ReadAhead read_ahead;   // of shards on disks
  store::StreamOptions streams;  // of states on disks
  // Units may be updated while the next forward runs. For those that stay whole between uses, a
  // reader outside of the model's forward would see old values.
  bool late_updates = false;
  // For units that are updated in backward, before the step is decided: memory beside their old
  // state, at most this much.
  std::int64_t early_bytes = 0;
  std::int64_t piece_elems = std::int64_t{1} << 23;  // updated, and sent to the device, at a time
  std::string out_of_memory_advice;

  bool used() const { return homes.optimizer.used() || homes.params.used(); }
};

struct Settings {
  Policy policy;
  GatherLimits limits;
  ReduceSettings reduce;
  StateSettings states;
  HostSettings host;
  UnusedParameters unused = UnusedParameters::allow;
  bool check_ranks = false;  // before every use, make sure that all ranks use the same boundary
  std::string out_of_memory_advice;
  OptionNames names;  // for messages
};

}  // namespace capstan::shard
