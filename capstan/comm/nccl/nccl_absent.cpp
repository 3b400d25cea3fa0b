#include "capstan/base/error.h"
#include "capstan/comm/nccl/nccl.h"

namespace capstan::comm {

std::unique_ptr<Nccl> start_nccl(const RankEnv&, std::chrono::milliseconds) {
  throw ConfigError({.what = "this build has no NCCL",
                     .where = "comm: backend nccl",
                     .fix = "build with a torch wheel for CUDA and -DCAPSTAN_CUDA=ON, "
                            "-DCAPSTAN_NCCL=ON"});
}

}  // namespace capstan::comm
