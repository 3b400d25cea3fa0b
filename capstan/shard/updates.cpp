#include "capstan/shard/updates.h"

#include <utility>

#include "capstan/shard/memory.h"
#include "capstan/shard/torch_dtype.h"
#include "capstan/store/tensor.h"

namespace capstan::shard {

Updates::Updates(const Ground& ground, std::span<Unit> units, std::vector<UnitStates> states)
    : ground_(ground), units_(units), states_(std::move(states)) {
  for (std::size_t i = 0; i < ground.plan.units.size(); ++i) {
    if (ground.plan.units[i].trainable) order_.push_back(static_cast<int>(i));
  }
  const HostSettings& host = ground.settings.host;
  const c10::Device device = ground.places.device().device();
  if (host.used() && host.early_bytes > 0) {
    may_be_early_ = early_units(ground.plan, ground.settings);
    // Takes all that memory once and leaves it to the pool: page-locking it takes longer than the
    // updates.
    std::vector<FreshStates> all;
    for (const int unit : order_) {
      if (may_be_early_[static_cast<std::size_t>(unit)]) all.push_back(make_fresh(unit));
    }
  }
  if (host.late_updates) late_traffic_ = std::make_unique<store::HostTraffic>(device, recorder());
  if (host.late_updates || !may_be_early_.empty()) {
    queue_ = std::make_unique<UpdateQueue>(static_cast<int>(ground.plan.units.size()), device);
  }
}

bool Updates::sends_values(int unit) const {
  return on_host(unit) && !units_[static_cast<std::size_t>(unit)].shard_on_host();
}

at::Tensor Updates::new_values(int unit, std::int64_t elems) {
  return store::new_tensor(ground_.places.host(), elems, torch_dtype(spec(unit).dtype),
                           store::MemoryKind::parameters);
}

void Updates::send_values(int unit, std::int64_t begin, at::Tensor values) {
  const at::Tensor place = states(unit).params.narrow(0, begin, values.numel());
  if (updating_late_) {
    late_traffic_->limit_sends();
    late_arrival_ = late_traffic_->send_beside(place, std::move(values), spec(unit).name);
  } else {
    ground_.places.traffic()->send(place, std::move(values), spec(unit).name);
  }
}

void Updates::fetch_values(int unit, at::Tensor values) {
  ground_.places.traffic()->fetch(states(unit).params, std::move(values), spec(unit).name);
}

void Updates::publish(int unit) {
  Unit& updated = units_[static_cast<std::size_t>(unit)];
  updated.values_changed();
  if (!ground_.settings.policy.shards_optimizer() || updated.gather_is_free()) return;
  if (updated.state() != UnitState::whole) return;  // gathered at its next use
  comm::Group& cut = *ground_.groups.units[static_cast<std::size_t>(unit)].cut;
  publishing_.push_back(cut.all_gather(updated.flat(), updated.shard(), updated.spec().name));
}

void Updates::finish() {
  for (comm::PendingOp& op : publishing_) op.wait();
  publishing_.clear();
  if (ground_.places.traffic() != nullptr) ground_.places.traffic()->finish_fetches();
}

bool Updates::can_be_late(int unit) const {
  if (late_traffic_ == nullptr || !on_host(unit)) return false;
  // What is read ahead must be up to date.
  if (ground_.settings.host.homes.params.on_disk()) return false;
  // Between several ranks only what is gathered at its next use: all else is published at once.
  const bool released = units_[static_cast<std::size_t>(unit)].state() == UnitState::sharded;
  const bool alone = ground_.groups.units[static_cast<std::size_t>(unit)].cut->size() == 1;
  return !spec(unit).resident && (alone || released);
}

void Updates::start_late(std::vector<int> units, std::function<void(int unit)> update) {
  late_traffic_->follow_current();
  queue_->start_late(std::move(units), [this, update = std::move(update)](int unit) {
    updating_late_ = true;
    late_arrival_ = {};
    update(unit);
    updating_late_ = false;
    return late_arrival_;
  });
}

void Updates::await(int unit) {
  if (late_traffic_ == nullptr) return;
  const profile::Span waiting(recorder(), {"update", spec(unit).name, profile::Kind::wait});
  late_traffic_->await(queue_->wait(unit));
}

void Updates::settle_late() {
  if (late_traffic_ == nullptr || queue_->late_idle()) return;
  queue_->wait_all();
  for (const int unit : order_) await(unit);
}

bool Updates::keep_early(int unit) {
  std::optional<FreshStates> fresh = early() == nullptr ? std::nullopt : early()->take(unit);
  if (!fresh.has_value()) return false;
  UnitStates& mine = states(unit);
  mine.moments = std::move(fresh->moments);
  const bool shared = mine.master_is_params();
  if (shared) {
    mine.master.copy_(fresh->master);
  } else {
    mine.master = std::move(fresh->master);
  }
  const at::Tensor values = fresh->values.defined() ? std::move(fresh->values) : mine.master;
  if (sends_values(unit)) {
    send_values(unit, 0, values);
  } else if (!shared) {
    mine.params.copy_(values);
  }
  return true;
}

void Updates::gradient_complete(int unit, store::Arrival arrival) {
  if (may_be_early_.empty() || !may_be_early_[static_cast<std::size_t>(unit)]) return;
  queue_->ready(unit, std::move(arrival));
}

void Updates::gradient_changes(int unit) {
  if (!may_be_early_.empty()) queue_->forget(unit);
}

void Updates::settle() {
  settle_late();
  ground_.places.states(ground_.settings.host.homes.optimizer.where()).settle();
  if (early() != nullptr) early()->close(/*keep=*/false);  // the caller may change what it reads
}

void Updates::finish_sends() {
  if (ground_.places.traffic() != nullptr) ground_.places.traffic()->finish_sends();
  if (late_traffic_ != nullptr) late_traffic_->finish_sends();
}

void Updates::backward_begins() {
  settle_late();  // the gradients' homes are read until then
  if (late_traffic_ != nullptr) late_traffic_->drop_ended_sends();
}

void Updates::stop() noexcept {
  try {
    settle_late();  // whole parameters outlive us
    // Nobody is left who could be told.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
  }
  queue_.reset();
  may_be_early_.clear();
  late_traffic_.reset();
}

}  // namespace capstan::shard
