// The loops of rank_sum, compiled once per instruction set: each source that includes this file
// hands in its way to convert fp16 and gets its own copies (hence the unnamed namespace).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

#include <c10/core/ScalarType.h>

#include "capstan/comm/rank_sum_loops.h"

namespace capstan::comm {
namespace {

// 8 KiB of accumulators stay in the first-level cache while the pieces stream through.
constexpr std::int64_t kBlockElems = 2048;

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

// 16-bit elements are summed in fp32, integers in their unsigned form (sums wrap), fp32 and fp64 as
// they are.
template <typename Element>
struct Accumulator {
  using type = Element;
};
template <std::integral Element>
struct Accumulator<Element> {
  using type = std::make_unsigned_t<Element>;
};
template <>
struct Accumulator<Bf16> {
  using type = float;
};
template <>
struct Accumulator<Fp16> {
  using type = float;
};

inline float widen(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

// To the nearest, ties to even, as libtorch rounds; NaN stays NaN.
inline Bf16 narrow_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return {static_cast<std::uint16_t>(value != value ? 0x7fc0 : rounded)};
}

// Half is a struct of two static functions over blocks: widen(const Fp16*, float*, n) and
// narrow(const float*, Fp16*, n).
template <typename Half, typename Element, typename Sum>
void load_block(const Element* from, Sum* to, std::int64_t n) {
  if constexpr (std::is_same_v<Element, Fp16>) {
    Half::widen(from, to, n);
  } else if constexpr (std::is_same_v<Element, Bf16>) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = widen(from[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<Sum>(from[i]);
  }
}

template <typename Half, typename Element, typename Sum>
void add_block(const Element* from, Sum* to, std::int64_t n) {
  if constexpr (std::is_same_v<Element, Fp16>) {
    std::array<float, kBlockElems> wide;
    Half::widen(from, wide.data(), n);
    for (std::int64_t i = 0; i < n; ++i) to[i] += wide[i];
  } else if constexpr (std::is_same_v<Element, Bf16>) {
    for (std::int64_t i = 0; i < n; ++i) to[i] += widen(from[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i] += static_cast<Sum>(from[i]);
  }
}

template <typename Half, typename Element, typename Sum>
void store_block(const Sum* from, Element* to, std::int64_t n) {
  if constexpr (std::is_same_v<Element, Fp16>) {
    Half::narrow(from, to, n);
  } else if constexpr (std::is_same_v<Element, Bf16>) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = narrow_to_bf16(from[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<Element>(from[i]);
  }
}

template <typename Half, typename Out, typename Piece>
void sum_loop(void* out_memory, std::span<const void* const> pieces, std::int64_t elems,
              bool accumulate) {
  using Sum = typename Accumulator<Piece>::type;
  auto* out = static_cast<Out*>(out_memory);
  std::array<Sum, kBlockElems> sum;
  for (std::int64_t begin = 0; begin < elems; begin += kBlockElems) {
    const std::int64_t n = std::min(kBlockElems, elems - begin);
    load_block<Half>(static_cast<const Piece*>(pieces[0]) + begin, sum.data(), n);
    for (const void* piece : pieces.subspan(1)) {
      add_block<Half>(static_cast<const Piece*>(piece) + begin, sum.data(), n);
    }
    if (accumulate) {
      add_block<Half>(out + begin, sum.data(), n);
    }
    store_block<Half>(sum.data(), out + begin, n);
  }
}

template <typename Half, typename Out>
SumLoop find_floating(at::ScalarType piece) {
  switch (piece) {
    case at::ScalarType::Float:
      return sum_loop<Half, Out, float>;
    case at::ScalarType::Half:
      return sum_loop<Half, Out, Fp16>;
    case at::ScalarType::BFloat16:
      return sum_loop<Half, Out, Bf16>;
    default:
      return nullptr;
  }
}

// Null for combinations that comm refuses.
template <typename Half>
SumLoop find_loop(at::ScalarType out, at::ScalarType piece) {
  switch (out) {
    case at::ScalarType::Float:
      return find_floating<Half, float>(piece);
    case at::ScalarType::Half:
      return find_floating<Half, Fp16>(piece);
    case at::ScalarType::BFloat16:
      return find_floating<Half, Bf16>(piece);
    case at::ScalarType::Double:
      return piece == out ? sum_loop<Half, double, double> : nullptr;
    case at::ScalarType::Int:
      return piece == out ? sum_loop<Half, std::int32_t, std::int32_t> : nullptr;
    case at::ScalarType::Long:
      return piece == out ? sum_loop<Half, std::int64_t, std::int64_t> : nullptr;
    case at::ScalarType::Byte:
      return piece == out ? sum_loop<Half, std::uint8_t, std::uint8_t> : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace capstan::comm
