#include "capstan/shard/unit_groups.h"

namespace capstan::shard {

ModelGroups model_groups(const Plan& plan, comm::MeshGroups& mesh) {
  ModelGroups groups{.all = mesh.all(),
                     .peers = mesh.over(layout::kPeerAxes),
                     .units = {},
                     .stage = mesh.place(layout::Axis::pipe)};
  const auto if_several = [&mesh](layout::Axes axes) {
    return mesh.mesh().size(axes) > 1 ? &mesh.over(axes) : nullptr;
  };
  for (const UnitSpec& unit : plan.units) {
    groups.units.push_back({.cut = &mesh.over(unit.axes.cut),
                            .summed = if_several(unit.axes.summed),
                            .near = unit.near_shards > 0 ? &mesh.over(unit.axes.near) : nullptr,
                            .counted = mesh.place(unit.axes.summed) == 0});
  }
  return groups;
}

}  // namespace capstan::shard
