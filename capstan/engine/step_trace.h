// Draws some steps of all ranks: a trace and a page in a folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "capstan/comm/group.h"
#include "capstan/engine/run_log.h"
#include "capstan/profile/options.h"
#include "capstan/profile/recorder.h"
#include "capstan/profile/trace_files.h"

namespace capstan::engine {

// Threads: one caller at a time.
// Ranks:   all members are collective.
class StepTrace {
 public:
  struct Facts {
    c10::Device device;                // where collectives work
    std::string place;                 // of this rank, where ranks do different things
    profile::TracedSettings settings;  // for advice
  };

  // Group and log must outlive this. Makes the folder; throws where that fails.
  StepTrace(const profile::TraceOptions& options, comm::Group& group, RunLog& log, Facts facts);

  // Before the first phase of the step that follows so many.
  void step_begins(std::int64_t steps_before);
  // After the last phase of the step that makes them so many. A file that cannot be written is a
  // warning: a run does not end because of it.
  void step_ended(std::int64_t steps);

 private:
  void take();
  void finish();
  void write(const profile::Trace& trace) const;

  const profile::TraceOptions options_;
  comm::Group& group_;
  RunLog& log_;
  const Facts facts_;
  std::vector<double> offsets_us_;         // by rank, on rank 0
  std::optional<profile::Reader> reader_;  // in steps that are drawn
  std::vector<profile::Record> records_;
  std::int64_t dropped_ = 0;
  std::int64_t steps_before_ = 0;  // the first of them
  bool done_ = false;
};

}  // namespace capstan::engine
