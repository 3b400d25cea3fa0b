// A tensor as the optimizer kernels see it: a pointer and a dtype.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "capstan/optim/span.h"

namespace capstan::engine {

inline DType plain_dtype(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return DType::fp16;
    case at::kBFloat16:
      return DType::bf16;
    default:
      return DType::fp32;  // shards hold nothing else
  }
}

// From element `begin` of a 1-D tensor on.
inline optim::Column column(const at::Tensor& tensor, std::int64_t begin) {
  auto* const bytes = static_cast<char*>(tensor.mutable_data_ptr());
  return {bytes + begin * static_cast<std::int64_t>(tensor.itemsize()), plain_dtype(tensor)};
}

inline optim::ConstColumn const_column(const at::Tensor& tensor, std::int64_t begin) {
  const auto* const bytes = static_cast<const char*>(tensor.const_data_ptr());
  return {bytes + begin * static_cast<std::int64_t>(tensor.itemsize()), plain_dtype(tensor)};
}

}  // namespace capstan::engine
