#include "capstan/data/permutation.h"

#include "capstan/base/counter_random.h"

namespace capstan::data {
namespace {

constexpr unsigned kFeistelRounds = 6;  // four already make it a random-looking permutation

}  // namespace

Permutation::Permutation(std::int64_t count, std::uint64_t seed)
    : count_(static_cast<std::uint64_t>(count)), seed_(mix_bits(seed)) {
  while ((1ULL << (2 * half_bits_)) < count_) ++half_bits_;
}

// A Feistel network is a permutation of all numbers of 2 * half_bits_ bits, whatever its rounds do.
std::uint64_t Permutation::scramble(std::uint64_t value) const {
  const std::uint64_t mask = (1ULL << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (unsigned round = 0; round < kFeistelRounds; ++round) {
    const std::uint64_t mixed = mix_bits(right ^ mix_bits(seed_ + round));
    const std::uint64_t next = left ^ (mixed & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

// Numbers outside [0, count) are scrambled on until they fall inside: fewer than four times on
// average, because the network's range is less than four times too large.
std::int64_t Permutation::operator()(std::int64_t position) const {
  std::uint64_t value = scramble(static_cast<std::uint64_t>(position));
  while (value >= count_) value = scramble(value);
  return static_cast<std::int64_t>(value);
}

}  // namespace capstan::data
