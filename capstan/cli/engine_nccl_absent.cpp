#include "capstan/cli/engine_nccl.h"

namespace capstan::cli {

comm::StartNccl engine_nccl() { return nullptr; }

}  // namespace capstan::cli
