#include "capstan/checkpoint/deepspeed/exported_tensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::checkpoint {
namespace {

float float_from(Element type, const std::byte* bytes) {
  std::uint16_t half = 0;
  if (type == Element::f32) {
    float value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  std::memcpy(&half, bytes, sizeof half);
  if (type == Element::bf16) return std::bit_cast<float>(std::uint32_t{half} << 16U);
  const std::uint32_t sign = (half & 0x8000U) << 16U;
  const std::uint32_t exponent = half >> 10U & 0x1fU;
  const std::uint32_t mantissa = half & 0x3ffU;
  if (exponent == 0) {
    const float small = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -small : small;
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23U | mantissa << 13U);
}

// Round to nearest, ties to even, as libtorch does.
std::uint16_t bf16_from(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U);
}

std::uint16_t f16_from(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16U & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return sign | 0x7e00U;
  if (magnitude >= 0x477ff000U) return sign | 0x7c00U;  // rounds to infinity
  if (magnitude < 0x38800000U) {
    // Adding 2^-1 in the right place lets the hardware round to a multiple of 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + (magnitude >> 13U & 1U);
  return static_cast<std::uint16_t>(sign | (rounded - 0x38000000U) >> 13U);
}

void put_float(Element type, float value, std::byte* into) {
  if (type == Element::f32) {
    std::memcpy(into, &value, sizeof value);
    return;
  }
  const std::uint16_t half = type == Element::bf16 ? bf16_from(value) : f16_from(value);
  std::memcpy(into, &half, sizeof half);
}

void read_as(Reader& reader, const ElemSpan& span, Element type, std::span<std::byte> into) {
  const Element from = span.tensor->spec.element;
  const std::int64_t size = size_bytes(from);
  const std::int64_t target = size_bytes(type);
  reader.read(*span.tensor, span.begin * size, (span.begin + span.elems) * size,
              [&](std::int64_t begin, std::span<const std::byte> bytes) {
                std::byte* to = into.data() + (begin / size - span.begin) * target;
                if (from == type) {
                  std::memcpy(to, bytes.data(), bytes.size());
                  return;
                }
                for (std::size_t i = 0; i < bytes.size(); i += static_cast<std::size_t>(size)) {
                  put_float(type, float_from(from, bytes.data() + i), to);
                  to += target;
                }
              });
}

}  // namespace

std::int64_t count_elems(const std::vector<ElemSpan>& spans) {
  std::int64_t elems = 0;
  for (const ElemSpan& span : spans) elems += span.elems;
  return elems;
}

std::vector<ElemSpan> cut(const std::vector<ElemSpan>& spans, std::int64_t begin,
                          std::int64_t end) {
  std::vector<ElemSpan> result;
  std::int64_t at = 0;
  for (const ElemSpan& span : spans) {
    const std::int64_t from = std::max(begin, at);
    const std::int64_t to = std::min(end, at + span.elems);
    if (from < to) result.push_back({span.tensor, span.begin + from - at, to - from});
    at += span.elems;
  }
  return result;
}

Fill fill_of(Reader& reader, std::vector<ElemSpan> spans, Element type) {
  return [&reader, spans = std::move(spans), type](std::int64_t begin, std::span<std::byte> into) {
    const std::int64_t size = size_bytes(type);
    const std::int64_t first = begin / size;
    for (const ElemSpan& span : cut(spans, first, first + std::ssize(into) / size)) {
      const std::span<std::byte> part = into.first(static_cast<std::size_t>(span.elems * size));
      if (span.tensor == nullptr) {
        std::fill(part.begin(), part.end(), std::byte{0});
      } else {
        read_as(reader, span, type, part);
      }
      into = into.subspan(part.size());
    }
  };
}

}  // namespace capstan::checkpoint
