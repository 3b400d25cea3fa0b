// Samples per second, as the progress line shows them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace capstan::engine {

// Threads: one caller at a time.
class Throughput {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Throughput(std::int64_t samples_per_step) : samples_per_step_(samples_per_step) {}

  // At the end of every optimizer step, applied or skipped.
  void step_ended(Clock::time_point now);

  std::int64_t steps() const { return steps_; }
  // Unset until enough steps have been timed: the first two warm caches up and would mislead.
  std::optional<double> running_average() const;
  std::optional<double> current() const;

 private:
  std::int64_t samples_per_step_;
  std::int64_t steps_ = 0;
  std::optional<Clock::time_point> step_began_;
  std::chrono::duration<double> last_step_{0};
  std::chrono::duration<double> total_{0};
};

// The line of the seeds' logs, word for word.
std::string throughput_line(const Throughput& throughput, std::int64_t micro_step,
                            std::int64_t allocated_bytes, std::int64_t max_allocated_bytes);

}  // namespace capstan::engine
