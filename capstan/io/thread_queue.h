// RawQueue over pread and pwrite on a pool of threads, for kernels that have or allow no io_uring.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "capstan/io/raw_queue.h"

namespace capstan::io {

// Owns:    the worker threads, as many as operations may be in flight (at most kMaxWorkers).
class ThreadQueue final : public RawQueue {
 public:
  // Chosen: more blocked threads than this no longer raise the rate of any disk we measured.
  static constexpr int kMaxWorkers = 64;

  explicit ThreadQueue(int depth);
  ~ThreadQueue() override;  // finishes what was submitted
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  int depth() const override { return depth_; }
  Submitted submit(std::span<const RawOp> ops) override;
  std::int64_t wait(std::span<RawDone> out) override;

 private:
  void work();

  const int depth_;
  std::mutex mutex_;  // guards todo_, done_, closing_
  std::condition_variable todo_changed_;
  std::condition_variable done_changed_;
  std::deque<RawOp> todo_;
  std::deque<RawDone> done_;
  bool closing_ = false;
  std::vector<std::jthread> workers_;  // last: joined before the rest goes away
};

}  // namespace capstan::io
