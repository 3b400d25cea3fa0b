#include "capstan/tensor_parallel/take.h"

#include <ATen/ops/cat.h>

#include "capstan/base/error.h"

namespace capstan::tensor_parallel {

at::Tensor take(const at::Tensor& whole, const WeightCut& cut) {
  if (whole.sizes() != at::IntArrayRef(cut.shape)) {
    throw InternalError({.what = "a part is taken of a tensor with another shape than its cut's"});
  }
  const auto dim = static_cast<std::int64_t>(cut.dim);
  std::vector<at::Tensor> parts;
  for (const layout::ElemRange& range : cut.ranges) {
    parts.push_back(whole.narrow(dim, range.begin, range.size()));
  }
  return at::cat(parts, dim).contiguous();
}

}  // namespace capstan::tensor_parallel
