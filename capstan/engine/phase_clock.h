// How long forward, backward and step took, for the wall-clock breakdown.
#pragma once

#include <array>
#include <chrono>
#include <string>

namespace capstan::engine {

enum class Phase { forward, backward, reduce, step };
inline constexpr int kPhases = 4;

// forward is the time between the end of one phase and the begin of backward: a C++ model is called
// directly, so its forward (and whatever else the caller does) is what lies between.
// Threads: one caller at a time.
class PhaseClock {
 public:
  using Clock = std::chrono::steady_clock;

  // Ends whatever ran and counts the time since then as `phase`.
  void lap(Phase phase);
  void add(Phase phase, std::chrono::nanoseconds time);
  std::chrono::nanoseconds of(Phase phase) const { return times_[static_cast<std::size_t>(phase)]; }
  // "time (ms) | fwd: 1.00 | bwd: 2.00 | bwd_inner: 1.80 | bwd_allreduce: 0.20 | step: 0.50", and
  // all start at zero again.
  std::string take_line();

 private:
  Clock::time_point last_ = Clock::now();
  std::array<std::chrono::nanoseconds, kPhases> times_{};
};

}  // namespace capstan::engine
