// Between our plain DType and libtorch's.
#pragma once

#include <c10/core/ScalarType.h>

#include "capstan/base/dtype.h"

namespace capstan::shard {

constexpr at::ScalarType torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::fp16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
    case DType::fp32:
      break;
  }
  return at::kFloat;
}

}  // namespace capstan::shard
