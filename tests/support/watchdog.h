// Ends the process with status 3 when a counter stands still for a minute.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace capstan::test {

class Watchdog {
 public:
  explicit Watchdog(const std::atomic<std::int64_t>& progress)
      : thread_([this, &progress](const std::stop_token& stop) { watch(stop, progress); }) {}
  ~Watchdog() {
    thread_.request_stop();
    wake_.notify_all();
  }

 private:
  void watch(const std::stop_token& stop, const std::atomic<std::int64_t>& progress) {
    std::int64_t last = -1;
    while (!stop.stop_requested()) {
      const std::int64_t seen = progress.load();
      if (seen == last) {
        std::fprintf(stderr, "input %lld takes longer than a minute\n",
                     static_cast<long long>(seen));
        std::_Exit(3);
      }
      last = seen;
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, std::chrono::minutes(1), [&] { return stop.stop_requested(); });
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::jthread thread_;
};

}  // namespace capstan::test
