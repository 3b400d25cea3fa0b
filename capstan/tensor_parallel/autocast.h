// What torch.autocast means for layers that are autograd functions of ours. Private to
// tensor_parallel.
#pragma once

#include <ATen/core/Tensor.h>

namespace capstan::tensor_parallel {

// `x` as a matrix product takes it: in autocast's dtype where that is on for its device. The copy
// is differentiable; an undefined tensor stays undefined.
at::Tensor for_product(const at::Tensor& x);

}  // namespace capstan::tensor_parallel
