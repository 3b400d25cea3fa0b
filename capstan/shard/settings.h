// How one model is sharded: the engine's options as the core takes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capstan/base/option_names.h"
#include "capstan/shard/gather.h"
#include "capstan/shard/policy.h"
#include "capstan/shard/reduce.h"
#include "capstan/shard/states.h"
#include "capstan/store/swap_reader.h"

namespace capstan::shard {

// What lives in host memory instead of the device's.
struct HostSettings {
  // Share of the elements whose master, moments and gradient sums do; and of those whose shards do,
  // among units that are released between uses. The last units in the plan: their gradients come
  // first, and forward uses them last.
  double optimizer_share = 0;
  double params_share = 0;
  bool pin = true;         // page-locked memory, but for shards
  bool pin_params = true;  // of shards
  // Where optimizer state, or shards, are on disks: the folders of their files. The update runs on
  // the host.
  std::vector<std::string> swap_folders;
  std::vector<std::string> param_folders;
  store::ReadAhead read_ahead;  // of shards on disks
  // Units may be updated while the next forward runs. For those that stay whole between uses, a
  // reader outside of the model's forward would see old values.
  bool late_updates = false;
  // For units that are updated in backward, before the step is decided: memory beside their old
  // state, at most this much.
  std::int64_t early_bytes = 0;
  std::int64_t piece_elems = std::int64_t{1} << 23;  // updated, and sent to the device, at a time
  std::string out_of_memory_advice;

  bool used() const { return optimizer_share > 0 || params_share > 0; }
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
