// The floating-point types that we train in, as plain values: options and layouts speak of them
// without libtorch.
#pragma once

#include <cstdint>
#include <string_view>

namespace capstan {

enum class DType { fp32, fp16, bf16 };

constexpr std::int64_t size_bytes(DType dtype) { return dtype == DType::fp32 ? 4 : 2; }

constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::fp16:
      return "fp16";
    case DType::bf16:
      return "bf16";
    case DType::fp32:
      break;
  }
  return "fp32";
}

}  // namespace capstan
