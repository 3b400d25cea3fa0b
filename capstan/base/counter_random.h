// Random numbers as a function of what they are for (a seed, a step, a place): nothing is stored,
// and whoever asks for the same number gets the same, on any rank and after any restart.
#pragma once

#include <cstdint>

namespace capstan {

// The output function of SplitMix64: every input bit changes every output bit with even odds.
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

// A seed for the `number`-th thing that needs one; chains: derive_seed(derive_seed(seed, a), b).
constexpr std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t number) {
  return mix_bits(mix_bits(seed) ^ number);
}

// In [0, 1), with the 53 bits that a double holds.
constexpr double uniform_number(std::uint64_t seed, std::uint64_t number) {
  return static_cast<double>(derive_seed(seed, number) >> 11U) * 0x1p-53;
}

}  // namespace capstan
