// What the parts of a sharded model stand on, for tests of one part with ranks as threads.
#pragma once

#include <utility>
#include <vector>

#include "capstan/comm/group.h"
#include "capstan/shard/ground.h"
#include "capstan/shard/unit.h"

namespace capstan::shard::test {

// Units of one parameter of `kElems` elements each, all of them the unit's index at first.
struct GroundOfUnits {
  static constexpr std::int64_t kElems = 66;

  GroundOfUnits(comm::Group& group, int units, Settings of)
      : settings(std::move(of)),
        groups{group, group,
               std::vector<UnitGroups>(static_cast<std::size_t>(units), {.cut = &group})},
        plan(plan_of(units, group.size())),
        homes(choose_homes(plan, settings.policy, settings.host.homes)),
        places(c10::kCPU,
               {.states = {.placement = settings.host.homes.optimizer.where()},
                .params = {.placement = settings.host.homes.params.where()}},
               nullptr),
        ground{plan, settings, groups, homes, places} {}

  static Plan plan_of(int units, int world) {
    std::vector<ParamSpec> params;
    std::vector<BoundarySpec> boundaries;
    for (int i = 0; i < units; ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      params.push_back({.name = name, .sizes = {kElems}});
      boundaries.push_back({.name = name, .params = {i}});
    }
    return make_plan(params, boundaries, {.shards = world, .persistence_threshold_elems = 0});
  }

  Settings settings;
  ModelGroups groups;
  Plan plan;
  std::vector<UnitHomes> homes;
  store::Places places;
  Ground ground;
};

}  // namespace capstan::shard::test
