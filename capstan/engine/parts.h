// What an engine is given besides its options.
#pragma once

#include <string>
#include <vector>

#include "capstan/base/log.h"
#include "capstan/comm/world.h"
#include "capstan/engine/agreement.h"
#include "capstan/engine/checkpoint_types.h"
#include "capstan/engine/monitoring.h"
#include "capstan/engine/torch_updater.h"
#include "capstan/schedule/schedule.h"
#include "capstan/shard/plan.h"

namespace capstan::engine {

// All ranks that an engine trains on, and who makes smaller groups of them where options need some
// (Options::mesh, hybrid sharding). Both must outlive the engine.
struct Ranks {
  Ranks() = default;  // those of the launcher
  // NOLINTBEGIN(google-explicit-constructor): so that Parts{.group = world} says it
  Ranks(comm::World& world) : all(&world.group()), maker(&world) {}
  // That nobody divides: options that need smaller groups are errors.
  Ranks(comm::Group* group) : all(group) {}
  // NOLINTEND(google-explicit-constructor)
  Ranks(comm::Group& group, comm::GroupMaker& maker) : all(&group), maker(&maker) {}

  comm::Group* all = nullptr;
  comm::GroupMaker* maker = nullptr;
};

// Weights that several stages of a pipeline share, such as an embedding that is also the head.
struct SharedWeights {
  shard::Tie tie;
  std::vector<std::string> params;  // of this stage, by name; none where it has no copy
};

// What only code can give; everything else is in Options.
struct Parts {
  Ranks group;
  Logger* logger = nullptr;         // unset: silence; must outlive the engine
  OptimizerFactory optimizer;       // takes the place of Options::optimizer
  UpdaterFactory updater;           // likewise, and need not be libtorch's
  schedule::Function schedule;      // takes the place of Options::schedule
  std::vector<SharedWeights> ties;  // the same list on every stage, but for the parameters
  MonitorMaker monitors;            // besides those of Options::monitor
  ModelExtras extras;               // for checkpoints; a C++ model's buffers and aliases are found
  comm::StartNccl start_nccl = nullptr;  // comm::start_nccl, to join ranks with models on GPUs
  SharedValues shared;  // compared between ranks before the options, by the caller's names
};

}  // namespace capstan::engine
