#include "benchmarks/engine/bench_nccl.h"

#include "capstan/comm/nccl/nccl.h"

namespace capstan {

comm::StartNccl bench_nccl() { return &comm::start_nccl; }

}  // namespace capstan
