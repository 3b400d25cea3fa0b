// How long checkpointed spans took, for Options::profile.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace capstan::recompute {

struct SpanTotals {
  std::int64_t forwards = 0;
  std::int64_t backwards = 0;
  std::chrono::nanoseconds forward_time{0};
  std::chrono::nanoseconds backward_time{0};  // recomputing included
};

// Threads: any; backward of a device runs on autograd's thread.
class SpanTimes {
 public:
  void add_forward(std::chrono::nanoseconds time) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++totals_.forwards;
    totals_.forward_time += time;
  }
  void add_backward(std::chrono::nanoseconds time) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++totals_.backwards;
    totals_.backward_time += time;
  }
  SpanTotals totals() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return totals_;
  }

 private:
  mutable std::mutex mutex_;
  SpanTotals totals_;
};

}  // namespace capstan::recompute
