// A step's figures under the names that DeepSpeed's users know from their monitors, and who takes
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capstan/monitor/step_stats.h"

namespace capstan::monitor {

struct Event {
  std::string name;  // "Train/Samples/lr"
  double value = 0;
  std::int64_t samples = 0;  // the x axis: what the run has learned from so far
  bool operator==(const Event&) const = default;
};

// What is not known, or not finite, is left out.
std::vector<Event> events_of(const StepStats& stats);
Event validation_event(std::int64_t samples, double loss);

// A monitor. Threads: one.
class Sink {
 public:
  virtual ~Sink() = default;
  // In the hands of whoever looks when this returns. Throws what keeps it from that.
  virtual void write(const std::vector<Event>& events) = 0;
};

}  // namespace capstan::monitor
