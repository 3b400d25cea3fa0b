// Letters and numbers of Unicode as ranges of code points: a few kilobytes instead of a library of
// thirty megabytes.
#pragma once

#include <cstdint>
#include <span>

namespace capstan::data {

// Both ends belong to the range.
struct CodeRange {
  std::uint32_t first;
  std::uint32_t last;
};

// Sorted, not touching each other.
std::span<const CodeRange> letter_ranges();  // general category L
std::span<const CodeRange> number_ranges();  // general category N

}  // namespace capstan::data
