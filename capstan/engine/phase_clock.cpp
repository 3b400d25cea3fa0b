#include "capstan/engine/phase_clock.h"

#include <fmt/format.h>

namespace capstan::engine {
namespace {

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

void PhaseClock::lap(Phase phase) {
  const Clock::time_point now = Clock::now();
  add(phase, now - last_);
  last_ = now;
}

void PhaseClock::add(Phase phase, std::chrono::nanoseconds time) {
  times_[static_cast<std::size_t>(phase)] += time;
}

std::string PhaseClock::take_line() {
  const std::string line = fmt::format(
      "time (ms) | fwd: {:.2f} | bwd: {:.2f} | bwd_inner: {:.2f} | bwd_allreduce: {:.2f} | step: "
      "{:.2f}",
      milliseconds(of(Phase::forward)), milliseconds(of(Phase::backward)),
      milliseconds(of(Phase::backward) - of(Phase::reduce)), milliseconds(of(Phase::reduce)),
      milliseconds(of(Phase::step)));
  times_ = {};
  return line;
}

}  // namespace capstan::engine
