// What an engine is given besides its options.
#pragma once

#include "capstan/base/log.h"
#include "capstan/comm/world.h"
#include "capstan/engine/agreement.h"
#include "capstan/engine/checkpoint_types.h"
#include "capstan/engine/torch_updater.h"
#include "capstan/schedule/schedule.h"

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

// What only code can give; everything else is in Options.
struct Parts {
  Ranks group;
  Logger* logger = nullptr;     // unset: silence; must outlive the engine
  OptimizerFactory optimizer;   // takes the place of Options::optimizer
  UpdaterFactory updater;       // likewise, and need not be libtorch's
  schedule::Function schedule;  // takes the place of Options::schedule
  ModelExtras extras;           // for checkpoints; a C++ model's buffers and aliases are found
  comm::StartNccl start_nccl = nullptr;  // comm::start_nccl, to join ranks with models on GPUs
  SharedValues shared;  // compared between ranks before the options, by the caller's names
};

}  // namespace capstan::engine
