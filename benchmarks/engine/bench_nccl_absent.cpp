#include "benchmarks/engine/bench_nccl.h"

namespace capstan {

comm::StartNccl bench_nccl() { return nullptr; }

}  // namespace capstan
