// How one model is sharded: the engine's options as the core takes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capstan/base/option_names.h"
#include "capstan/shard/gather.h"
#include "capstan/shard/homes.h"
#include "capstan/shard/policy.h"
#include "capstan/shard/reduce.h"
#include "capstan/shard/states.h"
#include "capstan/store/swap_reader.h"

namespace capstan::shard {

// What lives in host memory or on disks instead of the device.
struct HostSettings {
  Homes homes;
  store::ReadAhead read_ahead;  // of shards on disks
  // Units may be updated while the next forward runs. For those that stay whole between uses, a
  // reader outside of the model's forward would see old values.
  bool late_updates = false;
  // For units that are updated in backward, before the step is decided: memory beside their old
  // state, at most this much.
  std::int64_t early_bytes = 0;
  std::int64_t piece_elems = std::int64_t{1} << 23;  // updated, and sent to the device, at a time
  std::string out_of_memory_advice;

  bool used() const { return homes.optimizer.used() || homes.params.used(); }
  bool pins_states() const {
    return homes.optimizer.used() ? homes.optimizer.pin : homes.params.pin;
  }
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
