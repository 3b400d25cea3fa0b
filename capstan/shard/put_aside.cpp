#include "capstan/shard/put_aside.h"

namespace capstan::shard {
namespace {

std::vector<c10::Storage> shards_on_device(std::span<const Unit> units) {
  std::vector<c10::Storage> storages;
  for (const Unit& unit : units) {
    const bool in_use = !unit.keeps_whole() && unit.state() != UnitState::sharded;
    if (!in_use && !unit.shard_on_host()) storages.push_back(unit.shard().storage());
  }
  return storages;
}

}  // namespace

PutAside::PutAside(store::Places& places)
    : host_(store::Pool::of_host(places.host_ledger(), "offload less, or free some host memory",
                                 /*pinned=*/!places.device().device().is_cpu())),
      aside_(places.device(), *host_) {}

void PutAside::put(const AsideKinds& kinds, std::span<const Unit> units, const Updates& updates,
                   Reducer& gradients, const std::vector<at::Tensor>& moments) {
  using store::MemoryKind;
  if (kinds.params) aside_.put(shards_on_device(units), MemoryKind::parameters);
  if (kinds.gradients) aside_.put(gradients.memory(), MemoryKind::gradients);
  std::vector<c10::Storage> states;
  if (kinds.moments) {
    for (const at::Tensor& each : moments) states.push_back(each.storage());
  }
  for (const int unit : updates.order()) {
    const UnitStates& mine = updates.states(unit);
    if (!kinds.masters || mine.on_host || mine.master_is_params()) continue;
    states.push_back(mine.master.storage());
  }
  aside_.put(states, MemoryKind::optimizer);
  if (!aside_.empty()) kinds_ = kinds;
}

void PutAside::bring_back() {
  if (aside_.empty()) return;
  aside_.bring_back();
  kinds_ = {};
}

}  // namespace capstan::shard
