// The NCCL of this engine program: capstan-engine-cuda links it and with it libtorch's CUDA
// libraries, which take a second to load; capstan-engine, for CPU ranks, does not.
#pragma once

#include "capstan/comm/world.h"

namespace capstan::cli {

// For comm::make_world(); null in capstan-engine.
[[nodiscard]] comm::StartNccl engine_nccl();

}  // namespace capstan::cli
