// Units that are updated while backward still runs, as soon as their gradients are on the host:
// into memory beside the old state, which stays valid until the step is known to be what was
// guessed.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/shard/host_traffic.h"
#include "capstan/shard/states.h"
#include "capstan/store/pool.h"

namespace capstan::shard {

// What an update made; takes the place of the old state, or is dropped.
struct FreshStates {
  at::Tensor master;
  std::vector<at::Tensor> moments;
  at::Tensor values;  // in the unit's dtype; undefined where that is the master's
};

// Owns:    the thread that updates them, and what it made until that is taken or dropped.
// Threads: one caller at a time, beside that thread.
class EarlyUpdates {
 public:
  // Fills `fresh` from the unit's state and gradient; ends before its time when go_on() is false.
  using GoOn = std::function<bool()>;
  using Update = std::function<void(int unit, FreshStates& fresh, const GoOn& go_on)>;

  // `may`: by unit, whether its state fits into the budget. `pool` is the host's and outlives this.
  EarlyUpdates(std::vector<bool> may, store::Pool& pool, c10::Device device);
  ~EarlyUpdates();
  EarlyUpdates(const EarlyUpdates&) = delete;
  EarlyUpdates& operator=(const EarlyUpdates&) = delete;

  // Takes the memory for all units that may, by unit, and leaves it to the pool: page-locking it
  // takes longer than the updates.
  void prepare(std::span<const UnitStates> states) const;
  // While closed, and after all that was made is taken: from now on, ready units are updated.
  void open(Update update);
  bool is_open() const { return open_; }
  // The unit's gradient is the whole sum once `arrival` has come. Ignored while not open.
  void ready(int unit, const UnitStates& states, HostTraffic::Ahead arrival);
  // The unit's gradient will change: what was made of it is dropped.
  void forget(int unit);
  // Takes no more units. keep: returns when the unit at work is finished; what was made waits for
  // take(). Else everything is dropped. Rethrows what went wrong.
  void close(bool keep);

  // After close(true): once for each unit; an undefined master: it was not updated.
  bool has(int unit) const;
  FreshStates take(int unit);

 private:
  enum class Stage { idle, waiting, at_work, made };
  struct Slot {
    Stage stage = Stage::idle;
    const UnitStates* states = nullptr;
    HostTraffic::Ahead arrival;
    FreshStates fresh;
  };

  void run(const std::stop_token& stop);
  int take_next();
  void update(int unit);
  FreshStates make_fresh(const UnitStates& states) const;
  Slot& at(int unit) { return slots_[static_cast<std::size_t>(unit)]; }

  std::vector<bool> may_;
  store::Pool& pool_;
  c10::Device device_;
  bool open_ = false;
  mutable std::mutex mutex_;  // guards what follows, but `fresh` of a unit that is at work
  std::condition_variable_any changed_;
  Update update_;
  std::vector<Slot> slots_;   // by unit
  std::vector<int> waiting_;  // the newest last
  int at_work_ = -1;
  int dropped_ = -1;  // the unit at work whose result nobody wants
  std::exception_ptr failure_;
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace capstan::shard
