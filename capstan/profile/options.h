// What a run tells about itself. None of it changes a result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace capstan::profile {

// Per operation: calls, bytes, time, bandwidth.
struct CommsLoggerOptions {
  bool enabled = false;          // waits for the device once per report
  bool all_ops = true;           // false: only those in `ops`
  std::vector<std::string> ops;  // names as in the report, e.g. "all_gather"
  bool verbose = false;          // a line per operation, at the end of its phase
  bool debug = false;            // with the unit or purpose that it was for
  bool operator==(const CommsLoggerOptions&) const = default;
};

// What a trial of `capstan tune` measures: some steps in the middle, in a file at their end.
struct TrialOptions {
  std::string file;             // empty: this is no trial
  std::int64_t first_step = 3;  // counted from 1; the steps before it warm caches up
  std::int64_t last_step = 5;
  bool operator==(const TrialOptions&) const = default;
};

// Operations and time per module, of one step.
struct FlopsOptions {
  bool enabled = false;
  double recompute_factor = 0;  // share of forward added to backward where no recomputation is seen
  std::int64_t step = 1;        // how many steps come before it
  int depth = -1;               // of the report; -1: all
  int top_modules = 1;
  bool detailed = true;
  std::string output_file;  // empty: the screen
  bool operator==(const FlopsOptions&) const = default;
};

// A picture of some steps: which work ran when, on every rank.
struct TraceOptions {
  std::string folder;           // empty: none is drawn
  std::int64_t first_step = 3;  // counted from 1
  std::int64_t last_step = 5;
  bool operator==(const TraceOptions&) const = default;
};

struct Options {
  std::int64_t steps_per_print = 0;  // progress and throughput lines every so many steps; 0: never
  // Device time of forward, backward, reduce, step; waits for the device at the end of each step.
  bool wall_clock_breakdown = false;
  bool memory_breakdown = false;  // memory before and after each phase
  // Name the first output of a unit, and the first gradient, that is not finite; looking at each
  // waits for the device.
  bool find_nan = false;
  bool throughput = true;  // the throughput part of the progress lines
  std::string state_dump;  // logged once at start: every resolved option; empty: nothing
  CommsLoggerOptions comms;
  TrialOptions trial;
  FlopsOptions flops;
  TraceOptions trace;
  bool operator==(const Options&) const = default;
};

}  // namespace capstan::profile
