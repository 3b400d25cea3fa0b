#include "capstan/shard/late_updates.h"

#include <utility>

namespace capstan::shard {

LateUpdates::~LateUpdates() {
  thread_.request_stop();  // a unit that has begun is finished
}

void LateUpdates::start(std::vector<int> units, Update update) {
  wait_all();
  if (units.empty()) return;
  units_ = std::move(units);
  update_ = std::move(update);
  arrived_.clear();
  for (std::size_t i = 0; i < units_.size(); ++i) {
    place_of_[static_cast<std::size_t>(units_[i])] = static_cast<int>(i);
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void LateUpdates::run(const std::stop_token& stop) {
  for (const int unit : units_) {
    if (stop.stop_requested()) return;
    try {
      HostTraffic::Ahead arrival = update_(unit);
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

void LateUpdates::wait_for(std::size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return arrived_.size() >= count || failure_ != nullptr; });
  if (arrived_.size() < count) std::rethrow_exception(failure_);
}

HostTraffic::Ahead LateUpdates::wait(int unit) {
  const int place = place_of_[static_cast<std::size_t>(unit)];
  if (place < 0) return {};
  wait_for(static_cast<std::size_t>(place) + 1);
  place_of_[static_cast<std::size_t>(unit)] = -1;
  const std::lock_guard lock(mutex_);
  return arrived_[static_cast<std::size_t>(place)];
}

void LateUpdates::wait_all() {
  if (units_.empty()) return;
  wait_for(units_.size());
  thread_.join();
  units_.clear();
}

}  // namespace capstan::shard
