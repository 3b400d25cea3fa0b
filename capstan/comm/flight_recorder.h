// The last operations of one group on one rank, kept for the day something does not finish.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "capstan/comm/op.h"

namespace capstan::comm {

// Threads: the owner guards it. Never allocates until text() is asked for.
class FlightRecorder {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns the operation's number in the order of this group: 1, 2, …
  std::int64_t issued(const OpFacts& facts, Clock::time_point at);
  void finished(std::int64_t number, Clock::time_point at);

  // Oldest first, one line each: number, operation, age, how long it took or "not finished".
  std::string text(Clock::time_point seen_at) const;

 private:
  struct Entry {
    OpFacts facts;
    std::int64_t number = 0;  // 0: the entry is unused
    Clock::time_point issued;
    Clock::time_point finished;  // equal to the epoch while in flight
  };
  // 16 lines still fit on a screen and hold more than one unit's operations.
  std::array<Entry, 16> entries_{};
  std::int64_t last_ = 0;
};

}  // namespace capstan::comm
