// What the parts of a sharded model stand on.
#pragma once

#include <span>

#include "capstan/shard/homes.h"
#include "capstan/shard/plan.h"
#include "capstan/shard/settings.h"
#include "capstan/shard/unit_groups.h"
#include "capstan/store/places.h"

namespace capstan::shard {

// All of it outlives them.
struct Ground {
  const Plan& plan;
  const Settings& settings;
  const ModelGroups& groups;
  std::span<const UnitHomes> homes;  // by unit
  store::Places& places;
};

}  // namespace capstan::shard
