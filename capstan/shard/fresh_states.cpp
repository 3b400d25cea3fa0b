#include "capstan/shard/fresh_states.h"

#include "capstan/store/tensor.h"

namespace capstan::shard {
namespace {

// What no update writes, because no parameter has an element there.
void zero_gaps(const FreshStates& fresh, const Owned& owned) {
  std::vector<at::Tensor> columns = fresh.moments;
  columns.push_back(fresh.master);
  if (fresh.values.defined()) columns.push_back(fresh.values);
  std::int64_t covered = 0;
  const auto zero_to = [&](std::int64_t begin) {
    if (begin == covered) return;
    for (const at::Tensor& column : columns) column.narrow(0, covered, begin - covered).zero_();
  };
  for (const layout::SlotPiece& piece : owned.pieces) {
    zero_to(piece.in_shard.begin);
    covered = piece.in_shard.end;
  }
  zero_to(owned.range.size());
}

}  // namespace

FreshStates make_fresh(const UnitStates& states, store::Pool& pool) {
  const auto beside = [&](const at::Tensor& old, store::MemoryKind kind) {
    return store::new_tensor(pool, old.numel(), old.scalar_type(), kind);
  };
  FreshStates fresh;
  fresh.master = beside(states.master, store::MemoryKind::optimizer);
  for (const at::Tensor& moment : states.moments) {
    fresh.moments.push_back(beside(moment, store::MemoryKind::optimizer));
  }
  if (states.params.scalar_type() != states.master.scalar_type()) {
    fresh.values = beside(states.params, store::MemoryKind::parameters);
  }
  zero_gaps(fresh, states.owned);
  return fresh;
}

}  // namespace capstan::shard
