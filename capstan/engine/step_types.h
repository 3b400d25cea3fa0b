// What is said to an engine when it trains, and what it answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "capstan/monitor/step_stats.h"

namespace capstan::engine {

struct BackwardOptions {
  bool retain_graph = false;
  // False: the caller has divided the loss by the accumulation steps already.
  bool average_accumulation = true;
  // True: the loss, or the gradients, are multiplied by the loss scale and divided by the
  // accumulation steps already, and are taken as they are. A pipeline does that once, in the
  // backward of its last stage; the gradients that go from stage to stage have it.
  bool already_scaled = false;
  // Whether step(true) follows, for a caller who names boundaries; unset: micro-batches are
  // counted.
  std::optional<bool> boundary;
};

struct StepReport {
  bool boundary = false;     // false: one more micro-batch was counted, nothing else happened
  bool applied = false;      // false at a boundary: the step was skipped
  std::int64_t samples = 0;  // that it learned from, over all ranks
  double grad_norm = 0;      // of the averaged gradients before clipping; 0 where nobody asked
  double loss_scale = 1;     // that these gradients were made with
  std::vector<double> lr;    // of this step, by parameter group
  bool log_due = false;      // a line of progress comes after this step
  std::optional<monitor::PhaseMilliseconds> times;  // of its phases, where they are measured
  std::string non_finite;    // why it was skipped: the first parameter with an inf or NaN
};

}  // namespace capstan::engine
