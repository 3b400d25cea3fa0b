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
  std::vector<comm::Group*> tied;
  for (const Tie& tie : plan.ties) tied.push_back(&mesh.over_stages(tie.stages));
  for (const UnitSpec& unit : plan.units) {
    UnitGroups mine{
        .cut = &mesh.over(unit.axes.cut),
        .summed = if_several(unit.axes.summed),
        .near = unit.near_shards > 0 ? &mesh.over(unit.axes.near) : nullptr,
        .counted = mesh.place(unit.axes.summed) == 0 && mesh.place(unit.axes.copies) == 0};
    if (unit.tie.has_value()) {
      mine.tied = tied[static_cast<std::size_t>(*unit.tie)];
      mine.counted = mine.counted && mine.tied->rank() == 0;
    }
    groups.units.push_back(mine);
  }
  return groups;
}

std::vector<layout::SlotPiece> counted_pieces(const Plan& plan, int unit,
                                              const UnitGroups& groups) {
  if (!groups.counted) return {};
  const UnitSpec& spec = plan.units[static_cast<std::size_t>(unit)];
  std::vector<layout::SlotPiece> pieces;
  for (const layout::SlotPiece& piece : spec.layout.pieces(groups.cut->rank())) {
    const int param = spec.params[static_cast<std::size_t>(piece.slot)];
    const auto& counted = plan.params[static_cast<std::size_t>(param)].counted;
    if (!counted) {
      pieces.push_back(piece);
      continue;
    }
    const std::int64_t to_shard = piece.in_shard.begin - piece.in_slot.begin;
    for (const layout::ElemRange& range : *counted) {
      const layout::ElemRange both = layout::intersect(range, piece.in_slot);
      if (both.size() == 0) continue;
      pieces.push_back({piece.slot, both, {both.begin + to_shard, both.end + to_shard}});
    }
  }
  return pieces;
}

}  // namespace capstan::shard
