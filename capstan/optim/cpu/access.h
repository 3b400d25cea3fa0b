// How the CPU loops reach the elements of a column, whatever its dtype. The dtypes are constant
// over a loop, so these branches are always predicted; a template per combination of dtypes would
// be hundreds of copies of each kernel and no faster.
#pragma once

#include <cstdint>

#include "capstan/optim/cpu/kernel_table.h"
#include "capstan/optim/span.h"

namespace capstan::optim {

template <typename Vec>
Vec load(ConstColumn column, std::int64_t at) {
  switch (column.dtype) {
    case DType::bf16:
      return Vec::load_bf16(static_cast<const std::uint16_t*>(column.data) + at);
    case DType::fp16:
      return Vec::load_fp16(static_cast<const std::uint16_t*>(column.data) + at);
    case DType::fp32:
      break;
  }
  return Vec::load(static_cast<const float*>(column.data) + at);
}

template <typename Vec>
Vec load(Column column, std::int64_t at) {
  return load<Vec>(ConstColumn{column.data, column.dtype}, at);
}

template <typename Vec>
void store(Vec x, Column column, std::int64_t at) {
  switch (column.dtype) {
    case DType::bf16:
      return x.store_bf16(static_cast<std::uint16_t*>(column.data) + at);
    case DType::fp16:
      return x.store_fp16(static_cast<std::uint16_t*>(column.data) + at);
    case DType::fp32:
      return x.store(static_cast<float*>(column.data) + at);
  }
}

// A store past the caches, for a column that the loop does not read: it saves fetching each line
// before it is overwritten. Only where can_stream().
template <typename Vec>
void stream(Vec x, Column column, std::int64_t at) {
  switch (column.dtype) {
    case DType::bf16:
      return x.stream_bf16(static_cast<std::uint16_t*>(column.data) + at);
    case DType::fp16:
      return x.stream_fp16(static_cast<std::uint16_t*>(column.data) + at);
    case DType::fp32:
      return x.stream(static_cast<float*>(column.data) + at);
  }
}

// Short columns stay in the caches, where whoever reads the copy next finds them.
template <typename Vec>
bool can_stream(Column column, std::int64_t elems, Part part) {
  constexpr std::int64_t kShortElems = 1 << 17;  // 3.5 MB of Adam's columns, above most L2 caches
  if (column.data == nullptr || elems < kShortElems) return false;
  const std::int64_t size = size_bytes(column.dtype);
  const auto* first = static_cast<const char*>(column.data) + part.begin * size;
  return reinterpret_cast<std::uintptr_t>(first) %
             static_cast<std::uintptr_t>(Vec::kWidth * size) ==
         0;
}

// Asks for elements that will be needed soon. The distance is measured: with the four columns of
// Adam the hardware's own prefetching alone leaves a fifth of the bandwidth unused.
// Always inline: GCC takes a function that only prefetches for one without effect and drops it.
template <typename Vec>
[[gnu::always_inline]] inline void prefetch_after(ConstColumn column, std::int64_t at) {
  if constexpr (Vec::kWidth > 1) {
    constexpr std::int64_t kAheadElems = 256;
    const std::int64_t offset = (at + kAheadElems) * (column.dtype == DType::fp32 ? 4 : 2);
    // May lie past the end; a prefetch never faults.
    __builtin_prefetch(static_cast<const char*>(column.data) + offset);
  }
}

template <typename Vec>
[[gnu::always_inline]] inline void prefetch_after(Column column, std::int64_t at) {
  prefetch_after<Vec>(ConstColumn{column.data, column.dtype}, at);
}

}  // namespace capstan::optim
