// A RawQueue between a Ring and the real queue that shortens, fails or delays chosen operations.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "capstan/base/error.h"
#include "capstan/io/open_queue.h"
#include "capstan/io/raw_queue.h"

namespace capstan::test {

// What happens to one operation. Nothing set: it runs as it is.
struct Fault {
  int error = 0;                       // completes with this errno, never reaches the disk
  bool moves_nothing = false;          // completes with a count of 0
  std::int64_t at_most_bytes = 0;      // > 0: only so many bytes are transferred
  int refused = 0;                     // the queue does not take it, for this errno
  std::chrono::milliseconds delay{0};  // its completion comes this much later
};

// `n` counts operations from 0, retries included.
using FaultPlan = std::function<Fault(std::int64_t n, const io::RawOp& op)>;

class FaultyQueue final : public io::RawQueue {
 public:
  FaultyQueue(std::unique_ptr<io::RawQueue> inner, FaultPlan plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}

  int depth() const override { return inner_->depth(); }

  io::Submitted submit(std::span<const io::RawOp> ops) override {
    std::int64_t accepted = 0;
    for (io::RawOp op : ops) {
      const Fault fault = plan_(count_++, op);
      if (fault.refused != 0) return {.accepted = accepted, .error = fault.refused};
      in_flight_ += 1;
      most_in_flight_ = std::max(most_in_flight_.load(), in_flight_.load());
      {
        const std::lock_guard lock(mutex_);
        delay_ = std::max(delay_, fault.delay);
        if (fault.error != 0) made_up_.push_back({.tag = op.tag, .result = -fault.error});
        if (fault.moves_nothing) made_up_.push_back({.tag = op.tag, .result = 0});
      }
      if (fault.at_most_bytes > 0) op.bytes = std::min(op.bytes, fault.at_most_bytes);
      if (fault.error == 0 && !fault.moves_nothing) {
        const io::Submitted result = inner_->submit({&op, 1});
        if (result.accepted == 0) return {.accepted = accepted, .error = result.error};
      }
      ++accepted;
    }
    return {.accepted = accepted};
  }

  std::int64_t wait(std::span<io::RawDone> out) override {
    if (breaks_) throw InternalError({.what = "the queue broke on purpose"});
    std::unique_lock lock(mutex_);
    const auto delay = std::exchange(delay_, {});
    std::int64_t count = 0;
    while (!made_up_.empty() && count < std::ssize(out)) {
      out[static_cast<std::size_t>(count++)] = made_up_.front();
      made_up_.pop_front();
    }
    lock.unlock();
    std::this_thread::sleep_for(delay);
    if (count == 0) count = inner_->wait(out);
    in_flight_ -= count;
    return count;
  }

  // The next wait() reports a lost queue.
  void break_now() { breaks_ = true; }
  std::int64_t count() const { return count_; }
  std::int64_t most_in_flight() const { return most_in_flight_; }

 private:
  const std::unique_ptr<io::RawQueue> inner_;
  const FaultPlan plan_;
  std::atomic<std::int64_t> count_{0};
  std::atomic<std::int64_t> in_flight_{0};
  std::atomic<std::int64_t> most_in_flight_{0};
  std::atomic<bool> breaks_{false};
  std::mutex mutex_;  // guards what follows
  std::deque<io::RawDone> made_up_;
  std::chrono::milliseconds delay_{0};
};

// `queue` opened with faults in between; `faulty` (may be null) receives a view of the decorator.
inline io::OpenedQueue with_faults(io::OpenedQueue queue, FaultPlan plan,
                                   FaultyQueue** faulty = nullptr) {
  auto decorated = std::make_unique<FaultyQueue>(std::move(queue.queue), std::move(plan));
  if (faulty != nullptr) *faulty = decorated.get();
  queue.queue = std::move(decorated);
  return queue;
}

}  // namespace capstan::test
