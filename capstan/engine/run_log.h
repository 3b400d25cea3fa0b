// What an engine says while it trains: progress, throughput, times, memory, communication.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "capstan/base/log.h"
#include "capstan/engine/comms_log.h"
#include "capstan/engine/phase_clock.h"
#include "capstan/engine/step_types.h"
#include "capstan/engine/throughput.h"
#include "capstan/engine/trial_record.h"
#include "capstan/profile/options.h"
#include "capstan/profile/recorder.h"
#include "capstan/store/ledger.h"

namespace capstan::engine {

struct Progress {
  std::int64_t micro_steps = 0;  // as many as were to come before a step, where its caller named it
  std::int64_t step_calls = 0;   // of step(), whatever they ended
  std::int64_t steps = 0;        // optimizer steps, skipped ones included
  std::int64_t skipped = 0;
  std::int64_t samples = 0;  // over all ranks
  // Of the device's time, without the first steps; unset until there are some, and where the log
  // does not tell the speed.
  std::optional<double> samples_per_second = std::nullopt;
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
  // It reads `recorder` only for what is asked and heard.
  RunLog(Logger& logger, Voice voice, const profile::Options& options,
         std::shared_ptr<profile::Recorder> recorder);

  void say(LogLevel level, const std::string& text) const;
  // What each rank has to say by itself.
  void say_on_any_rank(LogLevel level, const std::string& text) const;

  // From here on phases are timed. `device`: of the model, as in profile::SpanFacts.
  void begin(int device) { clock_.emplace(*recorder_, device); }
  // After begin(): also records what a trial asks for.
  void record_trial(const TrialRecord::Job& job) { trial_.emplace(job, recorder_, &*clock_); }
  // Of the spans of our phases.
  const void* owner() const { return clock_.has_value() ? &*clock_ : nullptr; }
  // The time since the last call was spent in `phase`.
  void phase_ended(Phase phase, store::Ledger& ledger);
  // Whether a line of progress comes after so many steps.
  bool due(std::int64_t steps) const {
    return options_.steps_per_print > 0 && steps % options_.steps_per_print == 0;
  }
  // After an optimizer step, applied or skipped. Waits for the device where a line needs its times.
  // Returns the times of its phases where they are measured.
  std::optional<monitor::PhaseMilliseconds> step_ended(const Progress& progress,
                                                       const StepReport& report,
                                                       const store::Ledger& ledger);
  // Of the device's time, once it is known.
  std::optional<double> samples_per_second() const { return throughput_.running_average(); }
  // How many uses of units did not come in the recorded order, since the start.
  void trace_surprises(std::int64_t count);

 private:
  // What the recorder has by now.
  void read_spans();

  Logger& logger_;
  Voice voice_;
  profile::Options options_;
  std::shared_ptr<profile::Recorder> recorder_;
  std::optional<profile::Reader> reader_;  // none: nothing of it is asked for
  std::optional<PhaseClock> clock_;        // since begin()
  std::optional<TrialRecord> trial_;
  Throughput throughput_;
  PhaseTimes times_;
  CommsLog comms_;
  std::int64_t last_surprises_ = 0;
};

}  // namespace capstan::engine
