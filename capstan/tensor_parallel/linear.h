// Linear layers split over a tensor group. Weights have torch's shape [out, in]; a rank has its
// part of one of the two.
#pragma once

#include <ATen/core/Tensor.h>

#include "capstan/tensor_parallel/region.h"

namespace capstan::tensor_parallel {

// x: [..., in], as activations lie outside. weight: [part of out, in]; bias: [part of out] or
// undefined. Gives [..., part of out], whole along the sequence. Backward sums x's gradient over
// ranks while it computes the weight's.
at::Tensor column_linear(const Region& region, const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias = {});

// x: [..., part of in], whole along the sequence. weight: [out, part of in]; bias: [out], which all
// ranks have, or undefined: added once, to the sum. Gives [..., out], as activations lie outside.
at::Tensor row_linear(const Region& region, const at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& bias = {});

}  // namespace capstan::tensor_parallel
