// One float in a GPU thread, with the operations that optim/math.h asks for: each rounds once, and
// none may be contracted with its neighbour.
#pragma once

#include <cstdint>

#include <cuda_fp16.h>

#include "capstan/optim/span.h"

namespace capstan::optim {

// A template only because constexpr functions of templates may call what is not constexpr.
template <typename Float>
struct DeviceVecOf {
  Float value;

  static constexpr __device__ DeviceVecOf splat(float x) { return {x}; }

  friend constexpr __device__ DeviceVecOf operator+(DeviceVecOf a, DeviceVecOf b) {
    return {__fadd_rn(a.value, b.value)};
  }
  friend constexpr __device__ DeviceVecOf operator*(DeviceVecOf a, DeviceVecOf b) {
    return {__fmul_rn(a.value, b.value)};
  }
  friend constexpr __device__ DeviceVecOf operator/(DeviceVecOf a, DeviceVecOf b) {
    return {__fdiv_rn(a.value, b.value)};
  }
  friend constexpr __device__ DeviceVecOf fma(DeviceVecOf a, DeviceVecOf b, DeviceVecOf c) {
    return {__fmaf_rn(a.value, b.value, c.value)};
  }
  friend constexpr __device__ DeviceVecOf sqrt(DeviceVecOf a) { return {__fsqrt_rn(a.value)}; }
  friend constexpr __device__ DeviceVecOf sign(DeviceVecOf a) {
    return {static_cast<float>((a.value > 0.0f) - (a.value < 0.0f))};
  }
};
using DeviceVec = DeviceVecOf<float>;

__device__ inline float from_bf16(std::uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ inline float from_fp16(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// To nearest even, as on the CPU.
__device__ inline std::uint32_t to_bf16(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return x != x ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
__device__ inline std::uint32_t to_fp16(float x) { return __half_as_ushort(__float2half_rn(x)); }

template <DType kDtype>
__device__ float load_as(const void* data, std::int64_t at) {
  if constexpr (kDtype == DType::fp32) {
    return static_cast<const float*>(data)[at];
  } else {
    const std::uint32_t bits = static_cast<const std::uint16_t*>(data)[at];
    return kDtype == DType::bf16 ? from_bf16(bits) : from_fp16(bits);
  }
}

__device__ inline float load_one(const void* data, DType dtype, std::int64_t at) {
  if (dtype == DType::fp32) return load_as<DType::fp32>(data, at);
  return dtype == DType::bf16 ? load_as<DType::bf16>(data, at) : load_as<DType::fp16>(data, at);
}

__device__ inline void store_one(float x, void* data, DType dtype, std::int64_t at) {
  if (dtype == DType::fp32) {
    static_cast<float*>(data)[at] = x;
  } else {
    static_cast<std::uint16_t*>(data)[at] =
        static_cast<std::uint16_t>(dtype == DType::bf16 ? to_bf16(x) : to_fp16(x));
  }
}

// Four neighbours in one access; `at` is a multiple of four and the column is aligned for it.
__device__ inline void load_four(const void* data, DType dtype, std::int64_t at, float (&x)[4]) {
  if (dtype == DType::fp32) {
    const float4 v = *reinterpret_cast<const float4*>(static_cast<const float*>(data) + at);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    return;
  }
  const uint2 v = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(data) + at);
  const std::uint32_t halves[4] = {v.x & 0xffffu, v.x >> 16, v.y & 0xffffu, v.y >> 16};
  for (int i = 0; i < 4; ++i) {
    x[i] = dtype == DType::bf16 ? from_bf16(halves[i]) : from_fp16(halves[i]);
  }
}

__device__ inline void store_four(const float (&x)[4], void* data, DType dtype, std::int64_t at) {
  if (dtype == DType::fp32) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + at) =
        make_float4(x[0], x[1], x[2], x[3]);
    return;
  }
  std::uint32_t halves[4];
  for (int i = 0; i < 4; ++i) halves[i] = dtype == DType::bf16 ? to_bf16(x[i]) : to_fp16(x[i]);
  *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(data) + at) =
      make_uint2(halves[0] | halves[1] << 16, halves[2] | halves[3] << 16);
}

}  // namespace capstan::optim
