#include "capstan/shard/late_updates.h"

#include <utility>

namespace capstan::shard {

LateUpdates::~LateUpdates() {
  thread_.request_stop();  // a unit that has begun is finished
}

void LateUpdates::start(std::vector<int> units, Update update) {
  wait_all();
  if (units.empty()) return;
  const std::lock_guard lock(mutex_);
  ++round_;
  late_ = units.size();
  arrived_.clear();
  for (std::size_t i = 0; i < units.size(); ++i) {
    place_of_[static_cast<std::size_t>(units[i])] = static_cast<int>(i);
  }
  thread_ = std::jthread([this, units = std::move(units), update = std::move(update)](
                             const std::stop_token& stop) { run(stop, units, update); });
}

void LateUpdates::run(const std::stop_token& stop, const std::vector<int>& units,
                      const Update& update) {
  for (const int unit : units) {
    if (stop.stop_requested()) return;
    try {
      HostTraffic::Ahead arrival = update(unit);
      const std::lock_guard lock(mutex_);
      arrived_.push_back(std::move(arrival));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    changed_.notify_all();
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr) return;
  }
}

bool LateUpdates::wait_for(std::unique_lock<std::mutex>& lock, std::size_t count) {
  changed_.wait(lock, [&, round = round_] {
    return arrived_.size() >= count || failure_ != nullptr || round_ != round;
  });
  if (arrived_.size() < count && failure_ != nullptr) std::rethrow_exception(failure_);
  return arrived_.size() >= count;
}

HostTraffic::Ahead LateUpdates::wait(int unit) {
  std::unique_lock lock(mutex_);
  const int place = place_of_[static_cast<std::size_t>(unit)];
  if (place < 0) return {};
  if (!wait_for(lock, static_cast<std::size_t>(place) + 1)) return {};
  place_of_[static_cast<std::size_t>(unit)] = -1;
  return arrived_[static_cast<std::size_t>(place)];
}

void LateUpdates::wait_all() {
  std::unique_lock lock(mutex_);
  wait_for(lock, late_);
  late_ = 0;
  std::jthread ended = std::move(thread_);
  lock.unlock();  // it takes the lock once more
}

bool LateUpdates::idle() const {
  const std::lock_guard lock(mutex_);
  return late_ == 0;
}

}  // namespace capstan::shard
