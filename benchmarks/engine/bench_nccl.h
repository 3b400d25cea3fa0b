// NCCL where the build has it: start_nccl, or null.
#pragma once

#include "capstan/comm/world.h"

namespace capstan {

comm::StartNccl bench_nccl();

}  // namespace capstan
