// Of ShardedModel: the way of updated values to where the parameters live, on every rank.
#include <utility>

#include "capstan/shard/sharded_model.h"
#include "capstan/shard/torch_dtype.h"

namespace capstan::shard {

bool ShardedModel::sends_values(int unit) const {
  return updates_on_host(unit) && !units_[static_cast<std::size_t>(unit)].shard_on_host();
}

at::Tensor ShardedModel::new_values(int unit, std::int64_t elems) {
  const DType dtype = plan_.units[static_cast<std::size_t>(unit)].dtype;
  return tensor_over(host_pool_->take(elems * size_bytes(dtype), store::MemoryKind::parameters),
                     elems, at::TensorOptions(torch_dtype(dtype)));
}

void ShardedModel::send_values(int unit, std::int64_t begin, at::Tensor values) {
  const at::Tensor place = states(unit).params.narrow(0, begin, values.numel());
  if (updating_late_) {
    late_traffic_->limit_sends();
    late_arrival_ = late_traffic_->send_beside(place, std::move(values), unit_name(unit));
  } else {
    traffic_->send(place, std::move(values), unit_name(unit));
  }
}

bool ShardedModel::keep_early(int unit) {
  FreshStates fresh = early_ == nullptr ? FreshStates() : early_->take(unit);
  if (!fresh.master.defined()) return false;
  UnitStates& mine = states(unit);
  mine.moments = std::move(fresh.moments);
  const bool shared = mine.master_is_params();
  if (shared) {
    mine.master.copy_(fresh.master);
  } else {
    mine.master = std::move(fresh.master);
  }
  const at::Tensor values = fresh.values.defined() ? std::move(fresh.values) : mine.master;
  if (sends_values(unit)) {
    send_values(unit, 0, values);
  } else if (!shared) {
    mine.params.copy_(values);
  }
  return true;
}

void ShardedModel::fetch_values(int unit, at::Tensor values) {
  traffic_->fetch(states(unit).params, std::move(values), unit_name(unit));
}

at::Tensor ShardedModel::owned_gradient(int unit) {
  const at::Tensor& shard = gradient_shard(unit);
  if (settings_.policy.shards_optimizer() || groups(unit).cut->size() == 1) return shard;
  const std::int64_t elems = plan_.units[static_cast<std::size_t>(unit)].layout.padded_elems();
  const auto bytes = elems * static_cast<std::int64_t>(shard.itemsize());
  at::Tensor whole =
      tensor_over(pool_.take(bytes, store::MemoryKind::gradients), elems, shard.options());
  groups(unit)
      .cut->all_gather(whole, shard, plan_.units[static_cast<std::size_t>(unit)].name)
      .wait();
  return whole;
}

void ShardedModel::publish(int unit) {
  Unit& updated = units_[static_cast<std::size_t>(unit)];
  updated.values_changed();
  if (!settings_.policy.shards_optimizer() || updated.gather_is_free()) return;
  if (updated.state() != UnitState::whole) return;  // gathered at its next use
  publishing_.push_back(
      groups(unit).cut->all_gather(updated.flat(), updated.shard(), updated.spec().name));
}

void ShardedModel::finish_updates() {
  for (comm::PendingOp& op : publishing_) op.wait();
  publishing_.clear();
  if (traffic_ != nullptr) traffic_->finish_fetches();
}

}  // namespace capstan::shard
