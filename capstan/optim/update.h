// One optimizer step over one span, on the CPU. Knows no ranks, shards or modules; element-wise, so
// a span may be cut anywhere without a change of bits.
#pragma once

#include <span>
#include <string_view>

#include "capstan/optim/constants.h"
#include "capstan/optim/cpu/simd.h"
#include "capstan/optim/cpu/worker_pool.h"
#include "capstan/optim/options.h"
#include "capstan/optim/span.h"

namespace capstan::optim {

// How the CPU kernels run; changes speed, never a result. The pool must outlive the call.
struct CpuRun {
  WorkerPool& pool;
  Simd simd = best_simd();
};

// The state tensors of an optimizer, named as in torch.optim's state ("exp_avg", ...). A group of
// SGD without momentum has none.
std::span<const std::string_view> state_names(Kind kind, const HyperParams& hyper);

// The value that every element of the states has before the first step.
double initial_state(Kind kind, const HyperParams& hyper);

// Throws one ConfigError that lists every hyper-parameter out of its range, in all groups.
void check(const Options& options);

// Updates master, states and param in place. Any kind but lamb, which needs two phases.
// Requires: every column that the kind uses is present; columns do not overlap.
void update(Kind kind, const HyperParams& hyper, const StepScalars& scalars, const Span& span,
            const CpuRun& run);

}  // namespace capstan::optim
