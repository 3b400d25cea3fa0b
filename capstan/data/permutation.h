// A shuffle as a function: where position i of [0, count) goes, computed on its own, so that a
// shuffled order needs no memory and can be entered anywhere.
#pragma once

#include <cstdint>

namespace capstan::data {

class Permutation {
 public:
  // Different seeds give unrelated orders. Requires count > 0.
  Permutation(std::int64_t count, std::uint64_t seed);

  std::int64_t operator()(std::int64_t position) const;  // requires 0 <= position < count

 private:
  std::uint64_t scramble(std::uint64_t value) const;

  std::uint64_t count_;
  std::uint64_t seed_;
  unsigned half_bits_ = 1;  // the Feistel network works on two halves of so many bits
};

}  // namespace capstan::data
