// What is said to an engine when it trains, and what it answers.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace capstan::engine {

struct BackwardOptions {
  bool retain_graph = false;
  // False: the caller has divided the loss by the accumulation steps already.
  bool average_accumulation = true;
  // Whether step(true) follows, for a caller who names boundaries; unset: micro-batches are
  // counted.
  std::optional<bool> boundary;
};

struct StepReport {
  bool boundary = false;   // false: one more micro-batch was counted, nothing else happened
  bool applied = false;    // false at a boundary: the step was skipped
  double grad_norm = 0;    // of the averaged gradients before clipping; 0 where nobody asked
  double loss_scale = 1;   // that these gradients were made with
  std::vector<double> lr;  // of this step, by parameter group
  std::string non_finite;  // why it was skipped: the first parameter with an inf or NaN
};

}  // namespace capstan::engine
