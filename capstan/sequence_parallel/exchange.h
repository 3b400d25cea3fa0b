// Tensors that are cut along one dimension become tensors that are cut along another one.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/comm/group.h"

namespace capstan::sequence_parallel {

using Tensors = std::vector<at::Tensor>;
using GroupPtr = std::shared_ptr<comm::Group>;  // ranks that share sequences, in their order

// Which dimension every rank is to hold its part of, and which one it is to hold all of. Negative
// ones count from the end.
struct Dims {
  int split = 0;
  int join = 0;
};

// Cuts each tensor into equal parts along `split`, sends part r to rank r, and puts the parts that
// arrive together along `join`, in rank order. One collective for all tensors, which have one dtype
// and one device; contiguous or not. Values are moved, never changed. Gradients take the way back:
// the same with the two dimensions exchanged. A group of one moves nothing.
// The graph keeps the group. Throws ConfigError where a dimension cannot be cut so.
// Ranks: collective, and so is the backward.
Tensors exchange(const Tensors& tensors, Dims dims, const std::shared_ptr<comm::Group>& group);
at::Tensor exchange(const at::Tensor& tensor, Dims dims, const std::shared_ptr<comm::Group>& group);

}  // namespace capstan::sequence_parallel
