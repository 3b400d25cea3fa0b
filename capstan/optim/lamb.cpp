#include "capstan/optim/lamb.h"

#include <algorithm>
#include <cmath>

#include "capstan/optim/cpu/split.h"

namespace capstan::optim {

LambSums lamb_prepare(const HyperParams& hyper, const StepScalars& scalars, const Span& span,
                      const CpuRun& run) {
  const KernelTable& kernels = kernels_for(run.simd);
  const LambConstants constants = lamb_constants(hyper, scalars);
  return sum_blocks<LambSums>(
      run.pool, span.elems, [&](Part part) { return kernels.lamb_prepare(constants, span, part); });
}

double lamb_trust_ratio(const HyperParams& hyper, const LambSums& whole_slot) {
  if (whole_slot.master_squares == 0.0 || whole_slot.update_squares == 0.0) return 1.0;
  const double ratio = std::sqrt(whole_slot.master_squares / whole_slot.update_squares);
  return std::clamp(ratio, hyper.min_coeff, hyper.max_coeff);
}

void lamb_apply(const HyperParams& hyper, const StepScalars& scalars, double trust_ratio,
                const Span& span, const CpuRun& run) {
  const KernelTable& kernels = kernels_for(run.simd);
  const LambApplyRule apply = {.c = lamb_constants(hyper, scalars),
                               .minus_step = lamb_minus_step(hyper, scalars, trust_ratio)};
  for_parts(run.pool, span.elems, [&](Part part) { kernels.lamb_apply(apply, span, part); });
}

}  // namespace capstan::optim
