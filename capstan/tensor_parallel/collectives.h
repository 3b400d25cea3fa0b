// Collectives of tensors with dimensions, whatever their strides; nothing here is differentiable.
// Private to tensor_parallel and its tests.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/comm/group.h"

namespace capstan::tensor_parallel {

// One on its way. Its buffers live until wait().
class [[nodiscard]] PendingTensor {
 public:
  // `flat` will hold the elements of a tensor of that shape.
  PendingTensor(comm::PendingOp op, at::Tensor flat, std::vector<std::int64_t> shape);
  at::Tensor wait();

 private:
  friend PendingTensor start_gather(comm::Group& group, const at::Tensor& part, std::int64_t dim);

  comm::PendingOp op_;
  at::Tensor flat_;
  std::vector<std::int64_t> shape_;  // of what `flat_` holds
  std::int64_t parts_dim_ = -1;      // where the first dimension of `shape_` belongs; -1: nowhere
};

// The sum over ranks of `own`, made in place where it is contiguous: nobody else may see it.
PendingTensor start_sum(comm::Group& group, const at::Tensor& own);
// All ranks' parts, side by side along `dim`. Every rank's has the same shape.
PendingTensor start_gather(comm::Group& group, const at::Tensor& part, std::int64_t dim);
// This rank's part along `dim` of the sum over ranks.
PendingTensor start_reduce_scatter(comm::Group& group, const at::Tensor& whole, std::int64_t dim);

inline at::Tensor sum(comm::Group& group, const at::Tensor& own) {
  return start_sum(group, own).wait();
}
inline at::Tensor gather(comm::Group& group, const at::Tensor& part, std::int64_t dim) {
  return start_gather(group, part, dim).wait();
}
inline at::Tensor reduce_scatter(comm::Group& group, const at::Tensor& whole, std::int64_t dim) {
  return start_reduce_scatter(group, whole, dim).wait();
}

// A view of this rank's part along `dim`. Throws ConfigError where ranks do not divide it.
at::Tensor own_part(comm::Group& group, const at::Tensor& whole, std::int64_t dim);

}  // namespace capstan::tensor_parallel
