// A few threads that share one loop. Owned by whoever steps the optimizer; the CPU kernels are
// element-wise, so how a span is split never changes a bit.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace capstan::optim {

// Owns:    threads - 1 sleeping threads; the caller is the remaining one.
// Threads: any; callers of run() take turns.
class WorkerPool {
 public:
  // Throws ConfigError unless threads is positive.
  explicit WorkerPool(int threads);
  ~WorkerPool();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(0) ... body(parts - 1), each once, on up to threads() threads, and returns when all
  // are done. A thread takes the next part when it has finished one: one that is held up leaves its
  // share to the others. The body must not throw.
  template <typename Body>
  void run(int parts, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    const auto call = [](void* context, int part) { (*static_cast<Plain*>(context))(part); };
    run_job({.call = call,
             .context = const_cast<void*>(static_cast<const void*>(std::addressof(body))),
             .parts = parts});
  }

 private:
  struct Job {
    void (*call)(void* context, int part) = nullptr;
    void* context = nullptr;
    int parts = 0;
  };

  void run_job(Job job);
  void work(const std::stop_token& stop);
  void run_share(const Job& job);

  std::mutex turn_;   // of the callers
  std::mutex mutex_;  // guards all below but workers_
  std::condition_variable_any wake_;
  std::condition_variable done_;
  Job job_;
  std::uint64_t generation_ = 0;    // counts jobs, so that a worker takes each once
  int unfinished_ = 0;              // workers that have not yet finished the current job
  std::atomic<int> next_part_ = 0;  // of the current job; needs no lock
  std::vector<std::jthread> workers_;
};

}  // namespace capstan::optim
