#include "capstan/shard/early_updates.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

namespace capstan::shard {
namespace {

at::Tensor beside(const at::Tensor& old, at::TensorOptions options, store::Pool& pool,
                  store::MemoryKind kind) {
  const auto bytes = old.numel() * static_cast<std::int64_t>(options.dtype().itemsize());
  return tensor_over(pool.take(bytes, kind), old.numel(), options.device(pool.device()));
}

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

EarlyUpdates::EarlyUpdates(std::vector<bool> may, store::Pool& pool, c10::Device device)
    : may_(std::move(may)),
      pool_(pool),
      device_(device),
      slots_(may_.size()),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

EarlyUpdates::~EarlyUpdates() {
  const std::lock_guard lock(mutex_);
  waiting_.clear();
  dropped_ = at_work_;
}

FreshStates EarlyUpdates::make_fresh(const UnitStates& states) const {
  FreshStates fresh;
  fresh.master =
      beside(states.master, states.master.options(), pool_, store::MemoryKind::optimizer);
  for (const at::Tensor& moment : states.moments) {
    fresh.moments.push_back(beside(moment, moment.options(), pool_, store::MemoryKind::optimizer));
  }
  if (states.params.scalar_type() != states.master.scalar_type()) {
    fresh.values =
        beside(states.params, states.params.options(), pool_, store::MemoryKind::parameters);
  }
  zero_gaps(fresh, states.owned);
  return fresh;
}

void EarlyUpdates::prepare(std::span<const UnitStates> states) const {
  std::vector<FreshStates> all;
  for (std::size_t i = 0; i < may_.size(); ++i) {
    if (may_[i]) all.push_back(make_fresh(states[i]));
  }
}

void EarlyUpdates::open(Update update) {
  const std::lock_guard lock(mutex_);
  update_ = std::move(update);
  open_ = true;
}

void EarlyUpdates::ready(int unit, const UnitStates& states, HostTraffic::Ahead arrival) {
  if (!open_ || !may_[static_cast<std::size_t>(unit)]) return;
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = at(unit);
    slot.stage = Stage::waiting;
    slot.states = &states;
    slot.arrival = std::move(arrival);
    waiting_.push_back(unit);
  }
  changed_.notify_all();
}

void EarlyUpdates::run(const std::stop_token& stop) {
  const c10::OptionalDeviceGuard on_our_device(device_);  // memory is page-locked for it
  const c10::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
    at_work_ = take_next();
    at(at_work_).stage = Stage::at_work;
    lock.unlock();
    std::exception_ptr failure;
    try {
      update(at_work_);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    Slot& slot = at(at_work_);
    if (failure != nullptr) failure_ = failure;
    const bool wanted = failure == nullptr && dropped_ != at_work_;
    slot.stage = wanted ? Stage::made : Stage::idle;
    if (!wanted) slot.fresh = {};
    at_work_ = dropped_ = -1;
    changed_.notify_all();
  }
}

// The newest one that has come: of those that stay for after the step, the last ones in the next
// forward should be late, because the CPU rests between the last update and the first gradient.
int EarlyUpdates::take_next() {
  const auto newest = std::find_if(waiting_.rbegin(), waiting_.rend(), [this](int unit) {
    const HostTraffic::Ahead& arrival = at(unit).arrival;
    return arrival.arrived == nullptr || arrival.arrived->query();
  });
  const auto next = newest == waiting_.rend() ? waiting_.begin() : std::prev(newest.base());
  const int unit = *next;
  waiting_.erase(next);
  return unit;
}

void EarlyUpdates::update(int unit) {
  Slot& slot = at(unit);
  if (slot.arrival.arrived != nullptr) slot.arrival.arrived->synchronize();
  slot.fresh = make_fresh(*slot.states);
  update_(unit, slot.fresh, [this, unit] {
    const std::lock_guard lock(mutex_);
    return dropped_ != unit;
  });
}

void EarlyUpdates::forget(int unit) {
  std::unique_lock lock(mutex_);
  std::erase(waiting_, unit);
  if (at_work_ == unit) dropped_ = unit;
  changed_.wait(lock, [this, unit] { return at_work_ != unit; });
  at(unit).stage = Stage::idle;
  at(unit).fresh = {};
}

void EarlyUpdates::close(bool keep) {
  if (!open_) return;
  open_ = false;
  std::unique_lock lock(mutex_);
  for (const int unit : waiting_) at(unit).stage = Stage::idle;
  waiting_.clear();
  if (!keep) dropped_ = at_work_;
  changed_.wait(lock, [this] { return at_work_ < 0; });
  const std::exception_ptr failure = std::exchange(failure_, nullptr);
  if (!keep || failure != nullptr) {
    for (Slot& slot : slots_) {
      slot.stage = Stage::idle;
      slot.fresh = {};
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

bool EarlyUpdates::has(int unit) const {
  const std::lock_guard lock(mutex_);
  return slots_[static_cast<std::size_t>(unit)].stage == Stage::made;
}

FreshStates EarlyUpdates::take(int unit) {
  const std::lock_guard lock(mutex_);
  Slot& slot = at(unit);
  if (slot.stage != Stage::made) return {};
  slot.stage = Stage::idle;
  return std::exchange(slot.fresh, {});
}

}  // namespace capstan::shard
