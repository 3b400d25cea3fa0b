// What a trial of `capstan tune` finds out about its configuration, as a file for the tuner: the
// time of some steps, what they were made of, and the memory that they took.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "capstan/engine/options.h"
#include "capstan/engine/phase_clock.h"
#include "capstan/profile/recorder.h"

namespace capstan::engine {

// Waits for the device twice: before the first measured step and after the last.
// Threads: one caller at a time.
class TrialRecord {
 public:
  struct Job {
    const Options& options;  // outlives the record
    int ranks = 1;
    c10::Device device;  // of the model
  };
  // `clock` records the phases of this engine; it is only compared.
  TrialRecord(const Job& job, std::shared_ptr<profile::Recorder> recorder, const PhaseClock* clock);

  // After each step, applied or skipped, that learned from so many samples over all ranks. The file
  // is written after the last measured step; IoError where it cannot be.
  void step_ended(std::int64_t samples);

 private:
  using Clock = std::chrono::steady_clock;

  void begin();
  void read_phases();
  std::string text(double seconds) const;

  const Job job_;
  const std::shared_ptr<profile::Recorder> recorder_;
  const PhaseClock* const clock_;
  profile::Reader reader_;
  PhaseTimes phases_;       // of the measured steps
  std::int64_t steps_ = 0;  // of this process, also where it has resumed a run
  std::int64_t samples_ = 0;
  Clock::time_point began_;
};

}  // namespace capstan::engine
