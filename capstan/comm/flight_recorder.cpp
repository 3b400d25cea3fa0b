#include "capstan/comm/flight_recorder.h"

#include <algorithm>

#include <fmt/format.h>

namespace capstan::comm {
namespace {

double seconds_of(FlightRecorder::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

std::int64_t FlightRecorder::issued(const OpFacts& facts, Clock::time_point at) {
  ++last_;
  Entry& entry = entries_[last_ % entries_.size()];
  entry.facts = facts;
  entry.number = last_;
  entry.issued = at;
  entry.finished = {};
  return last_;
}

void FlightRecorder::finished(std::int64_t number, Clock::time_point at) {
  Entry& entry = entries_[number % entries_.size()];
  if (entry.number == number) {  // else it has been overwritten by later operations
    entry.finished = at;
  }
}

std::string FlightRecorder::text(Clock::time_point seen_at) const {
  std::string text;
  const auto kept = static_cast<std::int64_t>(entries_.size());
  for (std::int64_t number = std::max<std::int64_t>(1, last_ - kept + 1); number <= last_;
       ++number) {
    const Entry& entry = entries_[number % entries_.size()];
    text += fmt::format("  #{} {}, issued {:.3f} s ago, ", number, to_text(entry.facts),
                        seconds_of(seen_at - entry.issued));
    text += entry.finished == Clock::time_point{}
                ? "not finished\n"
                : fmt::format("took {:.3f} s\n", seconds_of(entry.finished - entry.issued));
  }
  return text;
}

}  // namespace capstan::comm
