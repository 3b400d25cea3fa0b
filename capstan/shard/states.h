// The optimizer's side of every trainable unit on this rank: the master copy and the moments of
// the elements it updates.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/shard/settings.h"
#include "capstan/shard/unit.h"

namespace capstan::shard {

// The elements of a unit that this rank updates: its shard, or everything where nothing is sharded.
struct Owned {
  layout::ElemRange range;                // in the flat buffer
  std::vector<layout::SlotPiece> pieces;  // in_shard counts from range.begin
};

Owned owned_elems(const UnitSpec& spec, bool sharded, int rank);

// What one optimizer step works on.
struct UnitStates {
  Owned owned;
  at::Tensor params;                // 1-D, owned.range.size(), the unit's dtype
  at::Tensor master;                // same elements; the very tensor `params` where dtypes agree
  std::vector<at::Tensor> moments;  // in the order of moment_names
  bool on_host = false;             // master and moments are in host memory

  bool master_is_params() const { return master.is_same(params); }
};

// Made in two steps around the Unit, because the model's original values may be more precise than
// the unit's dtype: the masters keep them.
// `originals` are the model's parameters in slot order, before the Unit takes them over.
// Where master and moments live.
struct StatesHome {
  store::Pool& pool;
  bool on_host = false;
  bool beside_params = true;  // parameters live there too: one copy serves where dtypes agree
};
UnitStates make_states(const UnitSpec& spec, const std::vector<at::Tensor>& originals, Owned owned,
                       const StateSettings& settings, StatesHome home);
// Points `params` (and a shared master) at the unit's own memory. Again after every change of it.
void bind_params(UnitStates& states, const Unit& unit, bool sharded);

}  // namespace capstan::shard
