#include "capstan/optim/constants.h"

#include <cmath>

namespace capstan::optim {
namespace {

float rounded(double x) { return static_cast<float>(x); }

// 1 - beta^step: what the moving average of a constant has reached after `step` steps.
double bias_correction(bool wanted, double beta, std::int64_t step) {
  return wanted ? 1.0 - std::pow(beta, static_cast<double>(step)) : 1.0;
}

double beta1_of(const HyperParams& hyper, const StepScalars& scalars) {
  return scalars.momentum.value_or(hyper.beta1);
}

}  // namespace

AdamConstants adam_constants(Kind kind, const HyperParams& hyper, const StepScalars& scalars) {
  const bool decoupled = kind == Kind::adamw;
  const double beta1 = beta1_of(hyper, scalars);
  const double correction1 = bias_correction(hyper.bias_correction, beta1, scalars.step);
  const double correction2 = bias_correction(hyper.bias_correction, hyper.beta2, scalars.step);
  return {.grad_factor = rounded(scalars.grad_factor),
          .l2_decay = decoupled ? 0.0f : rounded(hyper.weight_decay),
          .minus_lr_decay = decoupled ? rounded(-scalars.lr * hyper.weight_decay) : 0.0f,
          .beta1 = rounded(beta1),
          .one_minus_beta1 = rounded(1.0 - beta1),
          .beta2 = rounded(hyper.beta2),
          .one_minus_beta2 = rounded(1.0 - hyper.beta2),
          .inv_sqrt_correction2 = rounded(1.0 / std::sqrt(correction2)),
          .eps = rounded(hyper.eps),
          .minus_lr_per_correction1 = rounded(-scalars.lr / correction1)};
}

SgdConstants sgd_constants(const HyperParams& hyper, const StepScalars& scalars) {
  return {.grad_factor = rounded(scalars.grad_factor),
          .l2_decay = rounded(hyper.weight_decay),
          .momentum = rounded(scalars.momentum.value_or(hyper.momentum)),
          .one_minus_dampening = rounded(1.0 - hyper.dampening),
          .minus_lr = rounded(-scalars.lr),
          .nesterov = hyper.nesterov,
          .first_step = scalars.step <= 1};
}

LionConstants lion_constants(const HyperParams& hyper, const StepScalars& scalars) {
  const double beta1 = beta1_of(hyper, scalars);
  return {.grad_factor = rounded(scalars.grad_factor),
          .minus_lr_decay = rounded(-scalars.lr * hyper.weight_decay),
          .beta1 = rounded(beta1),
          .one_minus_beta1 = rounded(1.0 - beta1),
          .beta2 = rounded(hyper.beta2),
          .one_minus_beta2 = rounded(1.0 - hyper.beta2),
          .minus_lr = rounded(-scalars.lr)};
}

AdagradConstants adagrad_constants(const HyperParams& hyper, const StepScalars& scalars) {
  const double decay = 1.0 + static_cast<double>(scalars.step - 1) * hyper.lr_decay;
  return {.grad_factor = rounded(scalars.grad_factor),
          .l2_decay = rounded(hyper.weight_decay),
          .eps = rounded(hyper.eps),
          .minus_lr = rounded(-scalars.lr / decay)};
}

LambConstants lamb_constants(const HyperParams& hyper, const StepScalars& scalars) {
  const double beta1 = beta1_of(hyper, scalars);
  return {.grad_factor = rounded(scalars.grad_factor),
          .decay = rounded(hyper.weight_decay),
          .beta1 = rounded(beta1),
          .one_minus_beta1 = rounded(1.0 - beta1),
          .beta2 = rounded(hyper.beta2),
          .one_minus_beta2 = rounded(1.0 - hyper.beta2),
          .eps = rounded(hyper.eps),
          .eps_inside_sqrt = hyper.eps_inside_sqrt};
}

float lamb_minus_step(const HyperParams& hyper, const StepScalars& scalars, double trust_ratio) {
  const double beta1 = beta1_of(hyper, scalars);
  const double correction1 = bias_correction(hyper.bias_correction, beta1, scalars.step);
  const double correction2 = bias_correction(hyper.bias_correction, hyper.beta2, scalars.step);
  return rounded(-scalars.lr * std::sqrt(correction2) / correction1 * trust_ratio);
}

}  // namespace capstan::optim
