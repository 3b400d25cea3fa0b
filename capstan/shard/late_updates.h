// Units whose new values are still being computed on the host when the next forward begins: a unit
// is waited for when it is used, not before.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "capstan/shard/host_traffic.h"

namespace capstan::shard {

// Owns:    the thread that updates them.
// Threads: any may wait; one starts.
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
  bool idle() const;

 private:
  void run(const std::stop_token& stop, const std::vector<int>& units, const Update& update);
  // False: others have waited, and the next ones were started.
  bool wait_for(std::unique_lock<std::mutex>& lock, std::size_t count);

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<int> place_of_;                // among the late ones, by unit; -1: not late
  std::size_t late_ = 0;                     // how many there are
  std::int64_t round_ = 0;                   // how often some were started
  std::vector<HostTraffic::Ahead> arrived_;  // of those that are done
  std::exception_ptr failure_;
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace capstan::shard
