#include "capstan/base/error.h"
#include "capstan/optim/cuda/update.h"

namespace capstan::optim {
namespace {

[[noreturn]] void refuse_cuda() {
  throw ConfigError(
      {.what = "this build has no CUDA kernels",
       .where = "optim",
       .fix = "build on a machine with a CUDA compiler (-DCAPSTAN_CUDA=ON), or train on the CPU"});
}

}  // namespace

void update(Kind, const HyperParams&, const StepScalars&, const Span&, const CudaRun&) {
  refuse_cuda();
}
std::int64_t sum_block_count(std::int64_t) { refuse_cuda(); }
void sum_squares(const SumWork&, double*, const CudaRun&) { refuse_cuda(); }
void find_in_sums(const double*, const std::int32_t*, std::int64_t, GradFindings*, const CudaRun&) {
  refuse_cuda();
}
void decide_gate(const GradFindings*, int, const GateRule&, GateResult*, const CudaRun&) {
  refuse_cuda();
}
void lamb_prepare(const HyperParams&, const StepScalars&, const Span&, double*, double*,
                  const CudaRun&) {
  refuse_cuda();
}
void lamb_apply(const HyperParams&, const StepScalars&, double, const Span&, const CudaRun&) {
  refuse_cuda();
}

}  // namespace capstan::optim
