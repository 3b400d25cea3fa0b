// Updates beside the training thread: early ones in backward, as soon as a unit's gradient is on
// the host; late ones beside the next forward, each waited for where its unit is used. One thread,
// one queue, one state per unit; only when an update starts and who decides on it differ.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <c10/core/Device.h>

#include "capstan/shard/fresh_states.h"
#include "capstan/store/host_traffic.h"

namespace capstan::shard {

//   idle ---ready---> waiting --> running --> made ---take---> idle     early
//   idle or made ---start_late---> waiting --> running --> done ---wait---> idle     late
// An early update that nobody wants (forget, close) goes back to idle from wherever it is. A late
// one that fails, and all behind it, stay failed: their units hold old values.
enum class UpdateState { idle, waiting, running, made, done, failed };

// Owns:    the thread, and what early updates made until that is taken or dropped.
// Threads: any may wait for late updates; everything else is for one caller at a time, and take()
//          also for the tasks.
class UpdateQueue {
 public:
  // False: nobody wants the result any more.
  using GoOn = std::function<bool()>;
  // Makes new states beside the old ones; ends before its time when go_on() is false.
  using Early = std::function<FreshStates(int unit, const GoOn& go_on)>;
  // Updates a unit and tells when its values are on the device.
  using Late = std::function<store::Arrival(int unit)>;

  // Tasks run with `device` as the current one and without gradients.
  UpdateQueue(int unit_count, c10::Device device);
  ~UpdateQueue();  // the unit at work is finished; early ones end before their time
  UpdateQueue(const UpdateQueue&) = delete;
  UpdateQueue& operator=(const UpdateQueue&) = delete;

  UpdateState state(int unit) const;

  // Early. While closed, with no late ones on their way and nothing left to take: from now on units
  // that are ready are updated.
  void open(Early update);
  bool is_open() const { return open_; }
  // The unit's gradient is the whole sum once `arrival` has come. Ignored while not open.
  void ready(int unit, store::Arrival arrival);
  // The unit's gradient will change: what was made of it is dropped.
  void forget(int unit);
  // Takes no more units. keep: returns when the unit at work is finished; what was made waits for
  // take(). Else everything is dropped. Rethrows what went wrong.
  void close(bool keep);
  bool made(int unit) const;
  // After close(true): once for each unit; nothing where it was not updated.
  std::optional<FreshStates> take(int unit);

  // Late. While closed: starts update(unit) for all of them, in order. Those of the last call are
  // over.
  void start_late(std::vector<int> units, Late update);
  // Returns when the unit is up to date; null event: nothing to wait for on the device. Rethrows
  // what went wrong in its update or in one before it.
  store::Arrival wait(int unit);
  // Likewise for all; wait() still tells of each when its values arrive.
  void wait_all();
  bool late_idle() const;  // since wait_all()

 private:
  struct Slot {
    UpdateState state = UpdateState::idle;
    store::Arrival arrival;  // of the gradient for an early one, of the values after a late
    std::optional<FreshStates> fresh;  // made and not yet taken
  };

  void run(const std::stop_token& stop);
  int take_next();
  void run_early(int unit, std::unique_lock<std::mutex>& lock);
  void run_late(int unit, std::unique_lock<std::mutex>& lock);
  void drop(int unit);
  Slot& at(int unit) { return slots_[static_cast<std::size_t>(unit)]; }
  const Slot& at(int unit) const { return slots_[static_cast<std::size_t>(unit)]; }

  c10::Device device_;
  bool open_ = false;         // of the one caller
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  Early early_;
  Late late_;
  std::vector<Slot> slots_;      // by unit
  std::vector<int> waiting_;     // as they came
  std::vector<int> late_units_;  // since start_late(), until all are over
  std::int64_t round_ = 0;       // how often late ones were started
  int running_ = -1;
  bool dropped_ = false;  // nobody wants what the running one makes
  std::exception_ptr early_failure_;
  std::exception_ptr late_failure_;
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace capstan::shard
