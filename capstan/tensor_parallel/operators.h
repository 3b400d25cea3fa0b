// The conjugate operators of tensor parallelism: each one's backward is the other's forward, so
// that a split layer between two of them has the gradients of the whole one.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "capstan/comm/group.h"
#include "capstan/tensor_parallel/region.h"

namespace capstan::tensor_parallel {

// All for tensors of any strides; sums are made in rank order. The group outlives the graph.

// The same tensor; its gradient is the sum over ranks. Enters a split layer. Of a parameter that
// every rank has and uses for its own part of the activations, too.
at::Tensor copy_in(comm::Group& group, const at::Tensor& x);
// The sum over ranks; its gradient stays as it is. Leaves a split layer.
at::Tensor reduce_out(comm::Group& group, const at::Tensor& x);

// This rank's part of the last dimension; backward gathers. Ranks divide its length.
at::Tensor scatter_last(comm::Group& group, const at::Tensor& x);
// All ranks' parts along the last dimension; backward keeps this rank's.
at::Tensor gather_last(comm::Group& group, const at::Tensor& x);

// All ranks' parts along `dim`; backward sums over ranks and keeps this rank's part.
at::Tensor gather_sequence(comm::Group& group, const at::Tensor& x, std::int64_t dim);
// This rank's part along `dim` of the sum over ranks; backward gathers.
at::Tensor reduce_scatter_sequence(comm::Group& group, const at::Tensor& x, std::int64_t dim);
// This rank's part along `dim` of a tensor that all have; backward gathers.
at::Tensor scatter_sequence(comm::Group& group, const at::Tensor& x, std::int64_t dim);

// The sum over ranks, as activations lie outside of split layers.
at::Tensor leave(const Region& region, const at::Tensor& x);
// A parameter for activations outside of split layers: with these in parts, its gradient is summed.
at::Tensor outside(const Region& region, const at::Tensor& parameter);

}  // namespace capstan::tensor_parallel
