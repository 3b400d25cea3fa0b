// How samples are drawn for each data-parallel rank.
#pragma once

#include <cstdint>

namespace capstan::data {

struct Options {
  bool drop_last = false;     // leave out the last, smaller batch of an epoch
  bool shuffle = true;        // false: samples come as they lie in the data
  std::uint64_t seed = 1234;  // of the shuffle; equal on all ranks
  bool operator==(const Options&) const = default;
};

}  // namespace capstan::data
