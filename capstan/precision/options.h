// The dtype of every kind of value in a training step, and how fp16's narrow range is handled.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "capstan/base/dtype.h"

namespace capstan::precision {

// Only with fp16 parameters: the loss is multiplied before backward so that small gradients do not
// become zero, and the gradients are divided again before use.
struct LossScaleOptions {
  static constexpr double kFactor = 2;  // dynamic: what the scale grows and shrinks by

  double static_scale = 0;              // > 0: fixed; 0: dynamic, found by doubling and halving
  int initial_scale_power = 16;         // dynamic: start at 2^this; a high start skips some steps
  std::int64_t window_steps = 1000;     // clean steps between doublings
  int hysteresis = 2;                   // overflows tolerated before the scale is halved
  bool consecutive_hysteresis = false;  // true: every clean step refills the tolerance
  double min_scale = 1;                 // an overflow at this scale ends the run
  bool operator==(const LossScaleOptions&) const = default;

  double initial_scale() const { return std::ldexp(1.0, initial_scale_power); }  // if dynamic
};

struct Options {
  DType params = DType::fp32;      // parameters and activations; 16 bits halve memory and time
  DType grad_accum = DType::fp32;  // gradient shards; 16 bits halve them, but sums are rounded
  std::optional<DType> reduce;     // gradients on the wire; unset: the dtype of params
  DType master = DType::fp32;      // the copy that the optimizer updates
  DType optimizer_state =
      DType::fp32;               // moments; 16 bits save 4 bytes per parameter and lose accuracy
  std::optional<DType> buffers;  // cast floating-point buffers; unset: left as they are
  bool cast_inputs = false;      // cast floating-point forward inputs to the dtype of params
  // Looks for inf and NaN in the reduced gradients and skips the step. fp16 always looks; for bf16
  // and fp32 false saves one pass over the gradient shards and lets a NaN reach the parameters.
  bool check_grad_overflow = true;
  std::int64_t max_skipped_in_a_row = 0;  // the run ends after this many skipped steps; 0: never
  LossScaleOptions loss_scale;
  bool operator==(const Options&) const = default;

  DType reduce_dtype() const { return reduce.value_or(params); }
  bool scales_loss() const { return params == DType::fp16; }
  bool scale_is_dynamic() const { return scales_loss() && loss_scale.static_scale == 0; }
};

}  // namespace capstan::precision
