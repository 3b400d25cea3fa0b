#include "capstan/engine/phase_clock.h"

#include <fmt/format.h>

#include "capstan/comm/op.h"

namespace capstan::engine {
std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::forward:
      return "forward";
    case Phase::backward:
      return "backward";
    case Phase::reduce:
      return "reduce";
    case Phase::step:
      break;
  }
  return "step";
}

PhaseClock::PhaseClock(profile::Recorder& recorder, int device)
    : recorder_(recorder), device_(device) {
  begin();
}

void PhaseClock::begin() {
  span_ = {&recorder_,
           {.name = "phase", .kind = profile::Kind::phase, .device = device_, .owner = this}};
}

void PhaseClock::lap(Phase phase) {
  span_.end_as(to_string(phase));
  begin();
}

// Spans come in the order of their ends: what was waited for lies within the phase that comes next.
void PhaseTimes::add(const profile::Record& record) {
  const std::chrono::nanoseconds time = record.device.length;
  if (record.kind == profile::Kind::wait) {
    if (record.name == comm::to_string(comm::OpKind::reduce_scatter)) waited_ += time;
    return;
  }
  if (record.kind != profile::Kind::phase) return;
  for (const Phase phase : {Phase::forward, Phase::backward, Phase::step}) {
    if (record.name == to_string(phase)) times_[static_cast<std::size_t>(phase)] += time;
  }
  if (record.name == to_string(Phase::backward)) {
    times_[static_cast<std::size_t>(Phase::reduce)] += waited_;
  }
  waited_ = {};
}

monitor::PhaseMilliseconds PhaseTimes::now() const {
  return {.forward = profile::milliseconds(of(Phase::forward)),
          .backward = profile::milliseconds(of(Phase::backward)),
          .reduce = profile::milliseconds(of(Phase::reduce)),
          .step = profile::milliseconds(of(Phase::step))};
}

std::string PhaseTimes::take_line() {
  const std::string line = fmt::format(
      "time (ms) | fwd: {:.2f} | bwd: {:.2f} | bwd_inner: {:.2f} | bwd_allreduce: {:.2f} | step: "
      "{:.2f}",
      profile::milliseconds(of(Phase::forward)), profile::milliseconds(of(Phase::backward)),
      profile::milliseconds(of(Phase::backward) - of(Phase::reduce)),
      profile::milliseconds(of(Phase::reduce)), profile::milliseconds(of(Phase::step)));
  times_ = {};
  return line;
}

}  // namespace capstan::engine
