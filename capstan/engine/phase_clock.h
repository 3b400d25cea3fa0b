// How long forward, backward and step took, for the wall-clock breakdown.
#pragma once

#include <array>
#include <chrono>
#include <string>

#include "capstan/monitor/step_stats.h"
#include "capstan/profile/recorder.h"

namespace capstan::engine {

enum class Phase { forward, backward, reduce, step };
inline constexpr int kPhases = 4;

std::string_view to_string(Phase phase);

// Records a span for each phase, one after the other, with itself as the owner. forward is the time
// between the end of one phase and the begin of backward: a C++ model is called directly, so its
// forward (and whatever else the caller does) is what lies between. Threads: one caller at a time.
class PhaseClock {
 public:
  // `recorder` must outlive this. `device`: of the model, as in SpanFacts.
  PhaseClock(profile::Recorder& recorder, int device);
  ~PhaseClock() { span_.drop(); }
  PhaseClock(const PhaseClock&) = delete;
  PhaseClock& operator=(const PhaseClock&) = delete;

  // Ends whatever ran: the time since then was spent in `phase`.
  void lap(Phase phase);

 private:
  void begin();

  profile::Recorder& recorder_;
  const int device_;
  profile::Span span_;
};

// What a PhaseClock and a group recorded, added up.
// Threads: one caller at a time.
class PhaseTimes {
 public:
  void add(const profile::Record& record);
  std::chrono::nanoseconds of(Phase phase) const { return times_[static_cast<std::size_t>(phase)]; }
  monitor::PhaseMilliseconds now() const;
  // "time (ms) | fwd: 1.00 | bwd: 2.00 | bwd_inner: 1.80 | bwd_allreduce: 0.20 | step: 0.50", and
  // all start at zero again.
  std::string take_line();

 private:
  std::array<std::chrono::nanoseconds, kPhases> times_{};
  std::chrono::nanoseconds waited_{0};  // for reductions, in the phase that is not over
};

}  // namespace capstan::engine
