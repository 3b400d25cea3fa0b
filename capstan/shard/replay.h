// A plan run on paper on one rank: what the core holds on the device as units are used and
// gradients come, event by event, in the order in which the core itself would. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "capstan/shard/homes.h"
#include "capstan/shard/plan.h"
#include "capstan/shard/settings.h"
#include "capstan/shard/unit_bytes.h"
#include "capstan/shard/use_trace.h"
#include "capstan/store/ledger.h"

namespace capstan::shard {

struct ReplayOptions {
  bool keeps_blocks = false;  // as pools of CPU memory do: what comes back waits for the next
  // A reduction receives into memory of its own. False: the backend sums on the way.
  bool receives = true;
};

// Threads: one caller at a time.
class Replay {
 public:
  // `plan` must outlive this.
  Replay(const Plan& plan, const Settings& settings, const ReplayOptions& options);

  // As ShardedModel's.
  void begin_use(int boundary);
  void end_use(int boundary);
  void begin_backward();
  void gradient(int param);  // of a parameter came
  void end_backward();
  void finish_gradients();
  // The update, and the gradients go.
  void step();

  store::MemoryUse now() const { return now_; }
  // Memory that is kept for the next use, and that collectives receive into.
  std::int64_t workspace() const { return idle_bytes_ + received_bytes_; }
  std::int64_t total() const { return now_.total() + workspace(); }
  // The largest total() since the last reset, with what each kind held then.
  struct Peak {
    std::int64_t total = 0;
    store::MemoryUse use;
    std::int64_t workspace = 0;
    std::int64_t beside = 0;
  };
  const Peak& peak() const { return peak_; }
  void reset_peak();
  // Memory of others, say of activations: a peak is one of the sum.
  void beside(std::int64_t bytes);

 private:
  struct State {
    UnitBytes bytes;
    UnitHomes homes;
    int members = 0;
    std::int64_t gathered = 0;  // bytes that a gather takes; 0: it is free
    int pins = 0;
    bool keeps_whole = false;
    bool whole = false;
    bool unused = false;      // gathered ahead
    std::int64_t local = 0;   // held now
    std::int64_t filled = 0;  // gradients since the local buffer was taken
    std::int64_t sum = 0;     // held now
    bool has_sum = false;     // here or on the host
    int arrived = 0;          // in this backward
    bool issued = false;      // likewise
  };
  struct Flight {
    int unit = -1;  // none
    std::int64_t converted = 0;
  };

  State& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  void take(store::MemoryKind kind, std::int64_t bytes);
  void give(store::MemoryKind kind, std::int64_t bytes);
  void see_peak();
  void gather(int unit);
  void release(int unit);
  void make_room(std::int64_t bytes);
  void prefetch();
  void unpin(int unit);
  void put(int unit);
  void drop_local(int unit);
  void issue_ready();
  void issue(int unit);
  void add_alone(State& unit);
  void settle();
  void hand_over(int unit);

  const Plan& plan_;
  Settings settings_;
  ReplayOptions options_;
  bool alone_ = false;
  std::vector<State> units_;
  std::vector<std::int64_t> weights_;  // by unit: of the limits
  std::vector<int> order_;             // trainable units as they are reduced
  std::size_t next_ = 0;
  Flight flight_;
  UseTrace trace_;
  std::int64_t live_bytes_ = 0;
  std::int64_t unused_bytes_ = 0;

  store::MemoryUse now_;
  std::multimap<std::int64_t, bool> idle_;         // blocks by capacity
  std::multimap<std::int64_t, std::int64_t> out_;  // bytes in use -> capacity of their block
  std::int64_t idle_bytes_ = 0;
  std::map<std::int64_t, bool> received_;  // sizes of buffers that were made
  std::int64_t received_bytes_ = 0;
  std::int64_t beside_ = 0;
  Peak peak_;
};

}  // namespace capstan::shard
