// Samples per second of the device's time, as the progress line shows them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "capstan/profile/recorder.h"

namespace capstan::engine {

// Threads: one caller at a time.
class Throughput {
 public:
  // The phases of an engine, in their order. A step ends with the phase of that name, applied or
  // skipped.
  void add(const profile::Record& record);

  // At the end of every optimizer step; its time may come earlier or later.
  void step_ended(std::int64_t samples) {
    ++steps_;
    samples_ += samples;
    last_samples_ = samples;
  }

  std::int64_t steps() const { return steps_; }
  // Of the steps that the device has ended, with the samples of an average step. Unset until there
  // are enough: the first two warm caches up and would mislead.
  std::optional<double> running_average() const;
  std::optional<double> current() const;

 private:
  std::int64_t steps_ = 0;
  std::int64_t samples_ = 0;  // of them
  std::int64_t last_samples_ = 0;
  std::int64_t timed_ = 0;
  std::chrono::nanoseconds open_step_{0};
  std::chrono::duration<double> last_step_{0};
  std::chrono::duration<double> total_{0};  // of those after the first ones
};

// The line of the seeds' logs, word for word.
std::string throughput_line(const Throughput& throughput, std::int64_t micro_step,
                            std::int64_t allocated_bytes, std::int64_t max_allocated_bytes);

}  // namespace capstan::engine
