// A rank's part of a whole weight.
#pragma once

#include <ATen/core/Tensor.h>

#include "capstan/tensor_parallel/cut.h"

namespace capstan::tensor_parallel {

// A tensor of its own, contiguous. To start a weight, fill the whole one from one generator and
// take the part: then values do not depend on the number of ranks.
at::Tensor take(const at::Tensor& whole, const WeightCut& cut);

}  // namespace capstan::tensor_parallel
