// What a backward differentiates: a loss, or any outputs with their gradients.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/precision/loss_scale.h"

namespace capstan::engine {

// Throws ConfigError unless it is one element that has a gradient.
void check_loss(const at::Tensor& loss, const char* where);

// Throws ConfigError unless every output can be differentiated with its gradient: one of its shape,
// or an undefined one, which stands for 1, for an output of one element.
void check_outputs(const std::vector<at::Tensor>& outputs,
                   const std::vector<at::Tensor>& gradients);

// What is differentiated with, and what is left for the gradients that arrive: as the smallest
// range among outputs and gradients allows.
precision::LossFactor split_factor(double factor, const std::vector<at::Tensor>& outputs,
                                   const std::vector<at::Tensor>& gradients = {});

// What autograd starts from: the gradients, times `factor`.
std::vector<at::Tensor> seeds(const std::vector<at::Tensor>& outputs,
                              const std::vector<at::Tensor>& gradients, double factor);

}  // namespace capstan::engine
