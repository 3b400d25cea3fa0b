#include "capstan/shard/put_aside.h"

namespace capstan::shard {

PutAside::PutAside(ShardedModel& model)
    : model_(model),
      host_(store::Pool::of_host(model.host_ledger(), "offload less, or free some host memory",
                                 /*pinned=*/!model.device().is_cpu())),
      aside_(model.pool(), *host_) {
  model_.before_use = [this] { bring_back(); };
}

PutAside::~PutAside() { model_.before_use = nullptr; }

std::vector<c10::Storage> PutAside::params() const {
  std::vector<c10::Storage> storages;
  for (int u = 0; u < static_cast<int>(model_.plan().units.size()); ++u) {
    const Unit& unit = model_.unit(u);
    const bool in_use = !unit.keeps_whole() && unit.state() != UnitState::sharded;
    if (!in_use && !unit.shard_on_host()) storages.push_back(unit.shard().storage());
  }
  return storages;
}

void PutAside::put(const AsideKinds& kinds, const std::vector<at::Tensor>& moments) {
  model_.settle_updates();  // and brings back what is aside
  model_.end_pass();
  using store::MemoryKind;
  if (kinds.params) aside_.put(params(), MemoryKind::parameters);
  if (kinds.gradients) aside_.put(model_.reducer().memory(), MemoryKind::gradients);
  std::vector<c10::Storage> states;
  if (kinds.moments) {
    for (const at::Tensor& each : moments) states.push_back(each.storage());
  }
  for (const int unit : model_.step_order()) {
    const UnitStates& mine = model_.states(unit);
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
