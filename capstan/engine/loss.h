// The loss as a backward takes it.
#pragma once

#include <ATen/core/Tensor.h>

#include "capstan/precision/loss_scale.h"

namespace capstan::engine {

// Throws ConfigError unless it is one element that has a gradient.
void check_loss(const at::Tensor& loss, const char* where);

// What is differentiated with, and what is left for the gradients.
precision::LossFactor split_factor(double factor, const at::Tensor& loss);

}  // namespace capstan::engine
