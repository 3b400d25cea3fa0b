#include "capstan/optim/cuda/launch.h"

#include "capstan/base/error.h"

namespace capstan::optim {

void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  throw ConfigError({.what = cudaGetErrorString(error),
                     .where = kernel,
                     .fix = "if the error came from an earlier kernel, run again with "
                            "CUDA_LAUNCH_BLOCKING=1 to see which"});
}

void refuse_one_phase_lamb() {
  throw InternalError({.what = "lamb was stepped as one phase", .where = "optim::update"});
}

}  // namespace capstan::optim
