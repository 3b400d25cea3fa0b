// What happens to the loss scale at the end of a step, as a pure value: state and outcome of the
// step in, next state and event out. The same machine at every stage; for bf16 and fp32 the scale
// stays 1 and only the skipped steps are counted.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "capstan/base/error.h"
#include "capstan/precision/options.h"

namespace capstan::precision {

// Unscale gradients with the scale that their backward used: the `scale` of the state before the
// step, not after it.
struct LossScaleState {
  double scale = 1.0;
  std::int64_t steps = 0;           // optimizer steps seen, skipped ones included
  std::int64_t last_overflow = -1;  // the index among `steps` of the latest overflow; -1: none
  std::int64_t tolerance = 0;       // overflows left before the scale is halved (hysteresis)
  std::int64_t skipped_in_a_row = 0;

  bool operator==(const LossScaleState&) const = default;
};

enum class ScaleEvent {
  kept,              // the step was applied
  grown,             // the step was applied, and the scale doubles
  skipped,           // overflow without a dynamic scale
  tolerated,         // overflow, within the hysteresis: the scale stays
  halved,            // overflow: the scale shrinks
  at_minimum,        // overflow at the smallest scale: training cannot go on
  too_many_skipped,  // overflow, and the allowed number of skipped steps in a row is used up
};

// Whether the optimizer may apply the step that led to this event.
constexpr bool applies_step(ScaleEvent event) {
  return event == ScaleEvent::kept || event == ScaleEvent::grown;
}

// Whether the run must end; stop_error() says why.
constexpr bool stops_run(ScaleEvent event) {
  return event == ScaleEvent::at_minimum || event == ScaleEvent::too_many_skipped;
}

struct LossScaleStep {
  LossScaleState state;
  ScaleEvent event;
};

LossScaleState initial_loss_scale(const Options& options);

// A factor of the loss in two: what a loss of this dtype is differentiated with, which the dtype
// holds, and what its gradients are multiplied with when they arrive. fp16 ends at 65504, below the
// usual first scale.
struct LossFactor {
  double of_loss = 1;
  double of_gradients = 1;
};
LossFactor split_factor(double factor, DType loss);

LossScaleStep next_loss_scale(const Options& options, const LossScaleState& state, bool overflowed);

// One line for the log about a skipped step. `bad_param`: the first parameter whose gradient is not
// finite; empty when it is not known.
std::string skip_report(const LossScaleState& before, const LossScaleStep& after,
                        const std::string& bad_param);

// What to throw when stops_run(): what is known, and what to try.
ErrorInfo stop_error(const LossScaleStep& step, const std::string& bad_param);

// For checkpoints: every field by its name, and the rules of a dynamic scale beside them for those
// who go on without our options; restore takes the fields and throws ConfigError for a missing one.
std::map<std::string, double> save(const Options& options, const LossScaleState& state);
LossScaleState restore_loss_scale(const std::map<std::string, double>& fields);

}  // namespace capstan::precision
