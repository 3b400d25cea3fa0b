// How a model's state is split over ranks: the stage, when gradients are reduced, and how much may
// be whole at a time. Byte limits count whole parameters in their own dtype.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "capstan/base/option_names.h"

namespace capstan::shard {

// at_step: one reduction per step, gradients stay whole until then.
// per_backward: a reduction after every backward, only our shard of the sum is kept.
enum class ReduceSchedule { at_step, per_backward };

// What happens when a trainable parameter got no gradient in a step.
enum class UnusedParameters { allow, error };

// Modules whose parameters form one unit with all that is below them. A module matches by class
// name, by its dotted name in the model, or by the end of that name.
struct LeafModules {
  std::vector<std::string> classes;
  std::vector<std::string> names;
  std::vector<std::string> name_suffixes;
  bool operator==(const LeafModules&) const = default;
};

struct Options {
  // 0: nothing is sharded. 1: optimizer state. 2: + gradients. 3: + parameters. Each saves memory;
  // only 3 moves more elements (parameters are gathered at each use).
  int stage = 0;
  std::optional<ReduceSchedule>
      reduce_schedule;  // unset: at_step for 0 and 1, per_backward for 2 and 3

  // Parameters up to this size form resident units that are never released. Larger saves latency
  // and costs memory at stage 3. The layout depends on it at every stage.
  std::int64_t persistence_threshold_elems = 100'000;
  // Bound of the sum of resident parameters.
  std::int64_t persistence_total_elems = std::numeric_limits<std::int64_t>::max();

  std::int64_t prefetch_bytes = 100'000'000;    // stage 3: gathered ahead of use; 0: no prefetch
  std::int64_t max_live_bytes = 2'000'000'000;  // stage 3: whole at a time before prefetch stops
  std::int64_t max_reuse_bytes =
      2'000'000'000;         // stage 3: a unit used again within this stays whole
  bool overlap_comm = true;  // communicate while computing, on own streams

  // Ranks over which all that the stage shards is cut; the groups of so many hold replicas of each
  // other. 0: all ranks.
  int shard_ranks = 0;
  // Stage 3, > 1: so many neighbours keep a second copy of the parameters, cut between them, from
  // the first gather after a step on: later gathers stay among them.
  int near_ranks = 1;

  std::int64_t sub_group_elems = 1'000'000'000;  // optimizer step: elements updated at a time
  std::int64_t unit_granularity_elems = 0;  // > 0: modules up to this many parameters form one unit
  std::vector<std::string> unit_names;      // dotted names of modules that are units; empty: found
  LeafModules leaf_modules;
  UnusedParameters unused_parameters = UnusedParameters::allow;
  bool check_ranks =
      false;  // compare every unit's plan across ranks before use; slow, for debugging
  bool log_trace_changes = false;  // say when the order of use differs from the recorded one
  OptionNames names;               // for messages
  bool operator==(const Options&) const = default;
};

constexpr ReduceSchedule default_reduce_schedule(int stage) {
  return stage <= 1 ? ReduceSchedule::at_step : ReduceSchedule::per_backward;
}

}  // namespace capstan::shard
