// What every launch of this folder shares: a grid that fills the card, and an error instead of a
// launch that failed unseen. Private to optim/cuda. (nvcc cannot read base/error.h, hence the two
// functions that throw for the kernels' sources.)
#pragma once

#include <algorithm>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "capstan/optim/cuda/update.h"

namespace capstan::optim {

inline cudaStream_t stream_of(const CudaRun& run) { return static_cast<cudaStream_t>(run.stream); }

// Throws ConfigError when the last launch was refused.
void check_launch(const char* kernel);
// LAMB has two phases. Throws InternalError.
[[noreturn]] void refuse_one_phase_lamb();

// Threads in a loop over the elements rather than one each: a step of a large unit is then one wave
// of blocks. (Chosen: enough for 2048 threads on each of 132 processors, four times over.)
inline unsigned blocks_for(std::int64_t items, int threads) {
  constexpr std::int64_t kMaxBlocks = std::int64_t{132} * 8 * 4;
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((items + threads - 1) / threads, 1, kMaxBlocks));
}

}  // namespace capstan::optim
