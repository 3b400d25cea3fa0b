// What an engine says while it trains: progress, throughput, times, memory, communication.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "capstan/base/log.h"
#include "capstan/comm/op.h"
#include "capstan/engine/phase_clock.h"
#include "capstan/engine/throughput.h"
#include "capstan/profile/options.h"
#include "capstan/store/ledger.h"

namespace capstan::engine {

struct Progress {
  std::int64_t micro_steps = 0;
  std::int64_t steps = 0;  // optimizer steps, skipped ones included
  std::int64_t skipped = 0;
  std::int64_t samples = 0;  // over all ranks
  std::int64_t applied() const { return steps - skipped; }
};

// Threads: one caller at a time.
class RunLog {
 public:
  // Who hears what: nothing below `level`, and below an error only the rank that `speaks`.
  struct Voice {
    bool speaks = true;
    LogLevel level = LogLevel::info;
  };
  // `logger` must outlive this.
  RunLog(Logger& logger, Voice voice, const profile::Options& options,
         std::int64_t samples_per_step);

  void say(LogLevel level, const std::string& text) const;

  // The time since the last call was spent in `phase`; of it, `reducing` in waiting for peers.
  void phase_ended(Phase phase, store::Ledger& ledger, std::chrono::nanoseconds reducing = {});
  // After an optimizer step, applied or skipped.
  void step_ended(const Progress& progress, const std::vector<double>& lr,
                  const store::Ledger& ledger, const comm::Counters& counters);
  // After one collective, where its line is wanted.
  void operation_ended(comm::OpFacts facts, std::chrono::nanoseconds time) const;
  // How many uses of units did not come in the recorded order, since the start.
  void trace_surprises(std::int64_t count);

 private:
  std::string comms_table(const comm::Counters& counters);

  Logger& logger_;
  Voice voice_;
  profile::Options options_;
  Throughput throughput_;
  PhaseClock clock_;
  comm::Counters last_counters_;
  std::int64_t last_surprises_ = 0;
};

}  // namespace capstan::engine
