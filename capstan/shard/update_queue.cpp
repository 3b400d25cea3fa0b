#include "capstan/shard/update_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

namespace capstan::shard {

UpdateQueue::UpdateQueue(int unit_count, c10::Device device)
    : device_(device),
      slots_(static_cast<std::size_t>(unit_count)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

UpdateQueue::~UpdateQueue() {
  const std::lock_guard lock(mutex_);
  waiting_.clear();
  dropped_ = true;
}

UpdateState UpdateQueue::state(int unit) const {
  const std::lock_guard lock(mutex_);
  return at(unit).state;
}

void UpdateQueue::run(const std::stop_token& stop) {
  const c10::OptionalDeviceGuard on_our_device(device_);  // memory is page-locked for it
  const c10::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
    running_ = take_next();
    at(running_).state = UpdateState::running;
    if (late_units_.empty()) {
      run_early(running_, lock);
    } else {
      run_late(running_, lock);
    }
    running_ = -1;
    changed_.notify_all();
  }
}

// Late ones in their order. Of early ones the newest whose gradient has come: of those that stay
// for after the step, the last ones in the next forward should be late, because the CPU rests
// between the last update and the first gradient.
int UpdateQueue::take_next() {
  auto next = waiting_.begin();
  if (late_units_.empty()) {
    const auto newest = std::find_if(waiting_.rbegin(), waiting_.rend(), [this](int unit) {
      const store::Arrival& arrival = at(unit).arrival;
      return arrival.arrived == nullptr || arrival.arrived->query();
    });
    if (newest != waiting_.rend()) next = std::prev(newest.base());
  }
  const int unit = *next;
  waiting_.erase(next);
  return unit;
}

void UpdateQueue::run_early(int unit, std::unique_lock<std::mutex>& lock) {
  const store::Arrival arrival = at(unit).arrival;
  lock.unlock();
  std::optional<FreshStates> fresh;
  std::exception_ptr failure;
  try {
    if (arrival.arrived != nullptr) arrival.arrived->synchronize();
    fresh = early_(unit, [this] {
      const std::lock_guard check(mutex_);
      return !dropped_;
    });
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  if (failure != nullptr) early_failure_ = failure;
  dropped_ = false;  // who gave it up waits for us, and then drops what was made
  at(unit).state = failure == nullptr ? UpdateState::made : UpdateState::idle;
  at(unit).fresh = std::move(fresh);
}

void UpdateQueue::run_late(int unit, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  store::Arrival arrival;
  std::exception_ptr failure;
  try {
    arrival = late_(unit);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  at(unit).arrival = std::move(arrival);
  at(unit).state = UpdateState::done;
  if (failure == nullptr) return;
  late_failure_ = failure;
  at(unit).state = UpdateState::failed;
  for (const int behind : std::exchange(waiting_, {})) at(behind).state = UpdateState::failed;
}

void UpdateQueue::open(Early update) {
  wait_all();
  const std::lock_guard lock(mutex_);
  early_ = std::move(update);
  open_ = true;
}

void UpdateQueue::ready(int unit, store::Arrival arrival) {
  if (!open_) return;
  {
    const std::lock_guard lock(mutex_);
    at(unit).state = UpdateState::waiting;
    at(unit).arrival = std::move(arrival);
    waiting_.push_back(unit);
  }
  changed_.notify_all();
}

void UpdateQueue::drop(int unit) {
  at(unit).state = UpdateState::idle;
  at(unit).fresh.reset();
}

void UpdateQueue::forget(int unit) {
  std::unique_lock lock(mutex_);
  if (!late_units_.empty()) return;  // the step has decided
  std::erase(waiting_, unit);
  if (running_ == unit) dropped_ = true;
  changed_.wait(lock, [this, unit] { return running_ != unit; });
  drop(unit);
}

void UpdateQueue::close(bool keep) {
  if (!open_) return;
  open_ = false;
  std::unique_lock lock(mutex_);
  for (const int unit : std::exchange(waiting_, {})) at(unit).state = UpdateState::idle;
  if (!keep && running_ >= 0) dropped_ = true;
  changed_.wait(lock, [this] { return running_ < 0; });
  const std::exception_ptr failure = std::exchange(early_failure_, nullptr);
  if (!keep || failure != nullptr) {
    for (int unit = 0; unit < static_cast<int>(slots_.size()); ++unit) drop(unit);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

bool UpdateQueue::made(int unit) const {
  const std::lock_guard lock(mutex_);
  return at(unit).fresh.has_value();
}

std::optional<FreshStates> UpdateQueue::take(int unit) {
  const std::lock_guard lock(mutex_);
  Slot& slot = at(unit);
  if (slot.state == UpdateState::made) slot.state = UpdateState::idle;
  return std::exchange(slot.fresh, std::nullopt);
}

void UpdateQueue::start_late(std::vector<int> units, Late update) {
  wait_all();
  if (units.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    ++round_;
    late_ = std::move(update);
    for (const int unit : units) {
      at(unit).state = UpdateState::waiting;
      at(unit).arrival = {};
    }
    late_units_ = units;
    waiting_ = std::move(units);
  }
  changed_.notify_all();
}

store::Arrival UpdateQueue::wait(int unit) {
  std::unique_lock lock(mutex_);
  Slot& slot = at(unit);
  const auto on_its_way = [&] {
    return slot.state == UpdateState::waiting || slot.state == UpdateState::running;
  };
  if (!late_units_.empty() && on_its_way()) {
    const std::int64_t round = round_;
    changed_.wait(lock, [&] { return !on_its_way() || round_ != round; });
    if (round_ != round) return {};  // others have waited, and the next ones were started
  } else if (slot.state != UpdateState::done && slot.state != UpdateState::failed) {
    return {};
  }
  if (slot.state == UpdateState::failed) std::rethrow_exception(late_failure_);
  slot.state = UpdateState::idle;
  return slot.arrival;
}

void UpdateQueue::wait_all() {
  std::unique_lock lock(mutex_);
  if (late_units_.empty()) return;
  changed_.wait(lock, [this] { return waiting_.empty() && running_ < 0; });
  if (late_failure_ != nullptr) std::rethrow_exception(late_failure_);
  late_units_.clear();
}

bool UpdateQueue::late_idle() const {
  const std::lock_guard lock(mutex_);
  return late_units_.empty();
}

}  // namespace capstan::shard
