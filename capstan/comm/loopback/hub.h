// Where the ranks of one loopback group meet: sees every rank's operations, moves the bytes when
// the last one arrives. Private to comm/loopback.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/comm/loopback/loopback.h"
#include "capstan/comm/own_backend.h"

namespace capstan::comm {

// How bytes go from inputs to outputs.
enum class Movement { none, gather, exchange, exchange_others, from_root, to_peer };

// One rank's side of one operation.
struct Arrival {
  int rank = 0;
  OpFacts facts;
  Movement movement = Movement::none;
  at::Tensor out;
  at::Tensor in;
  c10::intrusive_ptr<OpWork> work;
};

// Owns:    the arrivals (and through them the tensors) of operations that are not complete, and
//          one thread when operations are delayed.
// Threads: any.
class LoopbackHub {
 public:
  LoopbackHub(int size, LoopbackOptions options);
  ~LoopbackHub();

  int size() const { return size_; }
  // The n-th call of each rank is the same collective; a mismatch ends the group on all ranks.
  void arrive(Arrival arrival);
  // Sends and receives match in order between each pair of ranks.
  void arrive_at_peer(Arrival arrival);
  void abort(std::string_view reason);
  std::string explain_stall();

 private:
  using Meeting = std::vector<Arrival>;
  struct Due {
    std::chrono::steady_clock::time_point at;
    Meeting meeting;
  };

  // All with the lock held.
  void abort_locked(std::string_view reason);
  void fail_locked(Arrival& arrival) const;
  void start_locked(Meeting meeting, std::unique_lock<std::mutex>& lock);
  void run_delayed(const std::stop_token& stop);

  const int size_;
  const LoopbackOptions options_;

  std::mutex mutex_;                          // guards all below
  std::vector<std::int64_t> issued_;          // collectives that each rank has issued
  std::vector<OpFacts> last_issued_;          // by rank
  std::map<std::int64_t, Meeting> meetings_;  // by number; not all ranks are there
  std::map<std::pair<int, int>, std::deque<Arrival>>
      peers_;  // by (sender, receiver); one side only
  std::deque<Due> due_;
  std::string failure_;  // empty: usable
  std::condition_variable_any due_changed_;
  std::jthread delayer_;  // last member: ends before what it uses
};

}  // namespace capstan::comm
