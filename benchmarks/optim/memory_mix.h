// The memory traffic of a CPU Adam step without its arithmetic: the bound of cpu_adam_bench.
#pragma once

#include <cstdint>

namespace capstan::optim {

// The arrays of one step. Read: grad, master, first, second; written: master, first, second, param.
struct MixArrays {
  const std::uint16_t* grad;
  float* master;
  float* first;
  float* second;
  std::uint16_t* param;
};

inline constexpr double kMixBytesPerElem = 28.0;  // 2 + 3 * 4 read, 3 * 4 + 2 written

// Touches elements [begin, end) of each array as Adam does, with one addition per value. Both ends
// are multiples of 32 and param is 64-byte aligned.
void run_memory_mix(const MixArrays& arrays, std::int64_t begin, std::int64_t end);

}  // namespace capstan::optim
