// One float at a time: the reference that every other instruction set must equal bit for bit.
// Also the remainder loop of each vector source, hence the level as a template argument: sources
// are compiled with different instruction sets, and a function shared between them could be linked
// from the one this machine cannot run. For that reason no inline function of the standard library
// is used here either (builtins are).
#pragma once

#include <cstdint>

#include "capstan/optim/cpu/simd.h"

namespace capstan::optim {

template <Simd Level>
struct ScalarVec {
  static constexpr int kWidth = 1;
  float value;

  // Called at the end of every kernel: leaves the registers as other code expects them.
  static void leave() {}

  static ScalarVec splat(float x) { return {x}; }
  static ScalarVec load(const float* at) { return {*at}; }
  static ScalarVec load_bf16(const std::uint16_t* at) {
    return {__builtin_bit_cast(float, static_cast<std::uint32_t>(*at) << 16)};
  }
  static ScalarVec load_fp16(const std::uint16_t* at);

  void store(float* at) const { *at = value; }
  void store_bf16(std::uint16_t* at) const;
  void store_fp16(std::uint16_t* at) const;
  void stream(float* at) const { store(at); }
  void stream_bf16(std::uint16_t* at) const { store_bf16(at); }
  void stream_fp16(std::uint16_t* at) const { store_fp16(at); }

  friend ScalarVec operator+(ScalarVec a, ScalarVec b) { return {a.value + b.value}; }
  friend ScalarVec operator-(ScalarVec a, ScalarVec b) { return {a.value - b.value}; }
  friend ScalarVec operator*(ScalarVec a, ScalarVec b) { return {a.value * b.value}; }
  friend ScalarVec operator/(ScalarVec a, ScalarVec b) { return {a.value / b.value}; }
  friend ScalarVec fma(ScalarVec a, ScalarVec b, ScalarVec c) {
    return {__builtin_fmaf(a.value, b.value, c.value)};
  }
  friend ScalarVec sqrt(ScalarVec a) { return {__builtin_sqrtf(a.value)}; }
  // 1, 0 or -1; zero for NaN.
  friend ScalarVec sign(ScalarVec a) {
    return {static_cast<float>((a.value > 0.0f) - (a.value < 0.0f))};
  }

  // Sums of squares in fp64, one per lane. The square of a float is exact in fp64.
  struct SquareSums {
    double lanes[kWidth] = {0.0};

    void add(ScalarVec x) { lanes[0] += static_cast<double>(x.value) * x.value; }
    void store(double* at) const { *at = lanes[0]; }
  };
};

template <Simd Level>
ScalarVec<Level> ScalarVec<Level>::load_fp16(const std::uint16_t* at) {
  const std::uint32_t half = *at;
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  if (magnitude < 0x0400u) {
    // Zero and denormals: the integer times 2^-24 is exact in fp32.
    const float tiny = static_cast<float>(magnitude) * 0x1p-24f;
    return {__builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, tiny) | sign)};
  }
  std::uint32_t bits = sign | ((magnitude << 13) + ((127u - 15u) << 23));
  if (magnitude >= 0x7c00u) bits |= 0x7f800000u;  // infinity or NaN
  if (magnitude > 0x7c00u) bits |= 0x00400000u;   // a NaN becomes quiet, as in hardware
  return {__builtin_bit_cast(float, bits)};
}

template <Simd Level>
void ScalarVec<Level>::store_bf16(std::uint16_t* at) const {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  *at = value != value ? 0x7fc0u : static_cast<std::uint16_t>(rounded >> 16);
}

template <Simd Level>
void ScalarVec<Level>::store_fp16(std::uint16_t* at) const {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x03ffu);  // keeps the payload's upper bits
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // 65520 and above round to infinity
  } else if (magnitude >= 0x38800000u) {
    half = (magnitude - ((127u - 15u) << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  } else {
    // Below the smallest normal half: adding 0.5 moves the half's last place to the float's last
    // place, so the addition itself rounds to nearest even.
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    half = __builtin_bit_cast(std::uint32_t, shifted) - 0x3f000000u;
  }
  *at = static_cast<std::uint16_t>(sign | half);
}

}  // namespace capstan::optim
