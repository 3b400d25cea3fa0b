// When parameters are gathered, when gradients are reduced, what is kept: a stage as a value.
#pragma once

#include "capstan/shard/options.h"

namespace capstan::shard {

enum class Gather {
  never,     // every rank updates everything itself
  per_step,  // parameters are whole; the updated shards are gathered once after the step
  per_use,   // only our shard is kept; the unit is gathered for each use
};

struct Policy {
  Gather params = Gather::never;
  ReduceSchedule reduce = ReduceSchedule::at_step;

  bool shards_params() const { return params == Gather::per_use; }
  bool shards_optimizer() const { return params != Gather::never; }
  bool operator==(const Policy&) const = default;
};

// The only place in the project that knows what the numbers mean. Throws ConfigError for a stage
// outside 0 to 3.
Policy policy_for(const Options& options);

// Whether a stage is one of those that shard gradients, whatever the schedule of the run makes of
// it: for programs that go by stages.
constexpr bool stage_shards_gradients(int stage) {
  return default_reduce_schedule(stage) == ReduceSchedule::per_backward;
}

}  // namespace capstan::shard
