// Memory and values for kernel tests: columns of every dtype at every misalignment, filled with
// ordinary and awkward values.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "capstan/base/dtype.h"
#include "capstan/optim/column_ops.h"
#include "capstan/optim/span.h"

namespace capstan::optim {

// Elements of one column that begin `offset` elements after an aligned address, with guard bytes
// behind the end.
class TestColumn {
 public:
  TestColumn(DType dtype, const std::vector<float>& values, int offset)
      : dtype_(dtype), elems_(values.size()), offset_(static_cast<std::size_t>(offset)) {
    bytes_.assign((offset_ + elems_) * width() + kGuard + kAlign, kGuardByte);
    WorkerPool pool(1);
    convert(column(), {values.data(), DType::fp32}, static_cast<std::int64_t>(elems_),
            {.pool = pool, .simd = Simd::scalar});
  }

  Column column() { return {begin(), dtype_}; }
  ConstColumn view() { return {begin(), dtype_}; }

  std::vector<float> values() {
    std::vector<float> out(elems_);
    WorkerPool pool(1);
    convert({out.data(), DType::fp32}, view(), static_cast<std::int64_t>(elems_),
            {.pool = pool, .simd = Simd::scalar});
    return out;
  }

  // The elements as integers, NaNs of any payload as one value.
  std::vector<std::uint32_t> bits() {
    std::vector<std::uint32_t> out;
    for (const float x : values()) {
      out.push_back(std::isnan(x) ? 0x7fc00000u : std::bit_cast<std::uint32_t>(x));
    }
    return out;
  }

  bool neighbours_untouched() {
    const unsigned char* first = base();
    const unsigned char* end = static_cast<unsigned char*>(begin()) + elems_ * width();
    const auto clean = [](unsigned char byte) { return byte == kGuardByte; };
    return std::all_of(first, first + offset_ * width(), clean) &&
           std::all_of(end, end + kGuard, clean);
  }

 private:
  static constexpr std::size_t kAlign = 64;
  static constexpr std::size_t kGuard = 128;
  static constexpr unsigned char kGuardByte = 0xa5;

  std::size_t width() const { return static_cast<std::size_t>(size_bytes(dtype_)); }
  unsigned char* base() {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    return bytes_.data() + (kAlign - address % kAlign) % kAlign;
  }
  void* begin() { return base() + offset_ * width(); }

  DType dtype_;
  std::size_t elems_;
  std::size_t offset_;
  std::vector<unsigned char> bytes_;
};

// Bell-shaped with deviation `scale`: the sum of four uniform numbers. Much faster than the
// standard library's, which matters under a sanitizer.
inline std::vector<float> normal_values(std::int64_t elems, unsigned seed, float scale = 1.0f) {
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  std::vector<float> out(static_cast<std::size_t>(elems));
  for (float& x : out) {
    std::int64_t sum = 0;
    for (int i = 0; i < 4; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<std::int32_t>(state >> 32);
    }
    x = scale * static_cast<float>(static_cast<double>(sum) * (0x1p-31 * 0.8660254037844386));
  }
  return out;
}

// Every third value is one of the awkward ones.
inline std::vector<float> awkward_values(std::int64_t elems, unsigned seed) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
  const std::vector<float> awkward = {
      0.0f,    -0.0f,  kInf,      -kInf,      std::numeric_limits<float>::quiet_NaN(),
      kMax,    -kMax,  kDenormal, -kDenormal, 1e-40f,
      -3e-39f, 1e-30f, 65504.0f,  65520.0f,   6e-8f,
      5.9e-8f, 1.0f,   -1.0f,     1e20f,      -1e20f};
  std::vector<float> out = normal_values(elems, seed);
  for (std::size_t i = seed % 3; i < out.size(); i += 3) {
    out[i] = awkward[(i / 3 + seed) % awkward.size()];
  }
  return out;
}

// Non-negative, as second moments and sums are.
inline std::vector<float> magnitudes(std::vector<float> values) {
  for (float& x : values) x = std::fabs(x);
  return values;
}

}  // namespace capstan::optim
