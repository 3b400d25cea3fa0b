// One rank of `capstan train`, from arguments to the end of training.
#pragma once

#include "capstan/cli/train/arguments.h"
#include "capstan/comm/world.h"

namespace capstan::cli::train {

// Returns the exit code. `start_nccl` is null in a program without CUDA.
int run(const Arguments& arguments, comm::StartNccl start_nccl);

}  // namespace capstan::cli::train
