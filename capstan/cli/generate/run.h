// One rank of `capstan generate`.
#pragma once

#include "capstan/cli/generate/arguments.h"
#include "capstan/comm/world.h"

namespace capstan::cli::generate {

// The exit code.
int run(const Arguments& arguments, comm::StartNccl start_nccl);

}  // namespace capstan::cli::generate
