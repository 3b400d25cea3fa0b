#include "capstan/cli/engine_nccl.h"

#include "capstan/comm/nccl/nccl.h"

namespace capstan::cli {

comm::StartNccl engine_nccl() { return &comm::start_nccl; }

}  // namespace capstan::cli
