// Activation checkpointing: keeps only the inputs of a function and computes it again in backward,
// with the same random numbers, so that gradients are bit-identical to keeping everything.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/recompute/options.h"
#include "capstan/recompute/span_times.h"

namespace capstan::recompute {

using Tensors = std::vector<at::Tensor>;

// Same inputs, same outputs: apart from the default random generators it must depend on nothing
// that changes between forward and backward. It lives until backward, so what it captures does too.
// Tensors that were computed with gradients come in as inputs, never as captures.
using Function = std::function<Tensors(const Tensors& inputs)>;

// Runs `function` once without keeping its activations. In backward it runs again with gradients
// on, and its part of the graph is walked at once: gradients of parameters reach their own
// accumulators, also when they were released in between (the function gathers them when it calls
// their units). Inputs may be undefined or need no gradient; outputs may be any number.
// Options::enabled is not looked at: calling this is enabling it.
// Backward throws ConfigError under create_graph (second derivatives) and where only chosen
// gradients are asked for (torch::autograd::grad), because parameters could not take part.
Tensors checkpoint(Function function, const Tensors& inputs, const Options& options = {},
                   std::shared_ptr<SpanTimes> times = nullptr);

// For the common case of one tensor in, one out.
at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> function,
                      const at::Tensor& input, const Options& options = {},
                      std::shared_ptr<SpanTimes> times = nullptr);

}  // namespace capstan::recompute
