// From hyper-parameters and the step's scalars to the fp32 constants that the kernels use. Computed
// in fp64 and rounded once, on the host, for CPU and GPU alike.
#pragma once

#include <cstdint>
#include <optional>

#include "capstan/optim/math.h"
#include "capstan/optim/options.h"

namespace capstan::optim {

// What changes from step to step.
struct StepScalars {
  double lr = 0.0;           // of this step and group; HyperParams::lr is not read
  std::int64_t step = 1;     // this update's number, from 1; skipped steps do not count
  double grad_factor = 1.0;  // multiplies the gradient: 1 / (loss scale * clip * averaging)
  // From a schedule that moves momentum: takes the place of beta1 or of SGD's momentum.
  std::optional<double> momentum;
};

AdamConstants adam_constants(Kind kind, const HyperParams& hyper, const StepScalars& scalars);
SgdConstants sgd_constants(const HyperParams& hyper, const StepScalars& scalars);
LionConstants lion_constants(const HyperParams& hyper, const StepScalars& scalars);
AdagradConstants adagrad_constants(const HyperParams& hyper, const StepScalars& scalars);
LambConstants lamb_constants(const HyperParams& hyper, const StepScalars& scalars);

// LAMB's -lr * sqrt(1 - beta2^step) / (1 - beta1^step) * trust_ratio.
float lamb_minus_step(const HyperParams& hyper, const StepScalars& scalars, double trust_ratio);

}  // namespace capstan::optim
