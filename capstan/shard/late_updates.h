// Units whose new values are still being computed on the host when the next forward begins: a unit
// is waited for when it is used, not before.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "capstan/shard/host_traffic.h"

namespace capstan::shard {

// Owns:    the thread that updates them.
// Threads: one caller at a time, beside that thread.
class LateUpdates {
 public:
  // Updates a unit and tells when its values are on the device.
  using Update = std::function<HostTraffic::Ahead(int unit)>;

  explicit LateUpdates(int unit_count) : place_of_(static_cast<std::size_t>(unit_count), -1) {}
  ~LateUpdates();
  LateUpdates(const LateUpdates&) = delete;
  LateUpdates& operator=(const LateUpdates&) = delete;

  // Starts update(unit) for all of them, in order. Those of the last call are over.
  void start(std::vector<int> units, Update update);
  // Returns when the unit is up to date; null event: nothing to wait for on the device. Rethrows
  // what went wrong in its update or in one before it.
  HostTraffic::Ahead wait(int unit);
  void wait_all();
  bool idle() const { return units_.empty(); }

 private:
  void run(const std::stop_token& stop);
  void wait_for(std::size_t count);

  std::vector<int> place_of_;  // in units_, by unit; -1: not late
  std::vector<int> units_;
  Update update_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<HostTraffic::Ahead> arrived_;  // of the units that are done
  std::exception_ptr failure_;
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace capstan::shard
