#include "capstan/shard/states.h"

#include <utility>

#include "capstan/shard/torch_dtype.h"
#include "capstan/store/tensor.h"

namespace capstan::shard {
Owned owned_elems(const UnitSpec& spec, bool sharded, int rank) {
  if (sharded) return {spec.layout.shard(rank), spec.layout.pieces(rank)};
  Owned all{.range = {0, spec.layout.padded_elems()}, .pieces = {}};
  for (std::size_t i = 0; i < spec.params.size(); ++i) {
    const layout::ElemRange slot = spec.layout.slots()[i];
    if (slot.size() == 0) continue;
    all.pieces.push_back({static_cast<int>(i), {0, slot.size()}, slot});
  }
  return all;
}

UnitStates make_states(const UnitSpec& spec, const std::vector<at::Tensor>& originals, Owned owned,
                       const StateSettings& settings, StatesHome home) {
  UnitStates states;
  states.on_host = home.on_host;
  const std::int64_t elems = owned.range.size();
  const DType master = master_dtype(settings, spec.dtype);
  if (!home.beside_params || master != spec.dtype) {
    states.master =
        store::new_tensor(home.pool, elems, torch_dtype(master), store::MemoryKind::optimizer);
    states.master.zero_();
    for (const layout::SlotPiece& piece : owned.pieces) {
      const at::Tensor values = originals[static_cast<std::size_t>(piece.slot)].detach().view(-1);
      states.master.narrow(0, piece.in_shard.begin, piece.in_shard.size())
          .copy_(values.narrow(0, piece.in_slot.begin, piece.in_slot.size()));
    }
  }
  for (std::size_t i = 0; i < settings.moment_names.size(); ++i) {
    states.moments.push_back(store::new_tensor(home.pool, elems, torch_dtype(settings.moments),
                                               store::MemoryKind::optimizer));
    states.moments.back().fill_(settings.initial_moment);
  }
  states.owned = std::move(owned);
  return states;
}

void bind_params(UnitStates& states, const Unit& unit, bool sharded) {
  const bool shared = !states.master.defined() || states.master_is_params();
  states.params = sharded ? unit.shard() : unit.flat();
  if (shared) states.master = states.params;
}

}  // namespace capstan::shard
