// The kernels of one instruction set as plain function pointers. Chosen once per call, at the edge;
// there is no dispatch inside a loop.
#pragma once

#include <cstdint>

#include "capstan/optim/cpu/simd.h"
#include "capstan/optim/math.h"
#include "capstan/optim/span.h"

namespace capstan::optim {

// Half-open range of elements that one call works on.
struct Part {
  std::int64_t begin;
  std::int64_t end;
};

// Sums in fp64 are made per block of this many elements, counted from the start of the span, and
// then added in order: the result depends neither on the thread count nor on the vector width.
inline constexpr std::int64_t kSumBlockElems = 16384;
// Lanes of a sum inside a block: a multiple of every vector width, wide enough to hide the latency
// of the additions.
inline constexpr int kSumLanes = 32;

// Sums of squares over one slot piece; add the pieces of a slot to get its norms.
struct LambSums {
  double master_squares = 0.0;
  double update_squares = 0.0;

  LambSums& operator+=(const LambSums& other) {
    master_squares += other.master_squares;
    update_squares += other.update_squares;
    return *this;
  }
};

template <typename Rule>
using UpdateKernel = void (*)(const Rule& rule, const Span& span, Part part);

struct KernelTable {
  UpdateKernel<AdamRule> adam;
  UpdateKernel<SgdRule> sgd;
  UpdateKernel<SgdMomentumRule> sgd_momentum;
  UpdateKernel<LionRule> lion;
  UpdateKernel<AdagradRule> adagrad;
  // Part of at most one block.
  LambSums (*lamb_prepare)(const LambConstants& constants, const Span& span, Part part);
  void (*lamb_apply)(const LambApplyRule& apply, const Span& span, Part part);
  double (*sum_squares)(ConstColumn column, Part part);
  void (*convert)(Column to, ConstColumn from, Part part);
  void (*accumulate)(Column to, ConstColumn from, Part part);
};

// Throws ConfigError when this machine or build has no such level.
const KernelTable& kernels_for(Simd level);

// One per source; null where the build's processor has no such instructions.
const KernelTable* scalar_kernels();
const KernelTable* avx2_kernels();
const KernelTable* avx512_kernels();

}  // namespace capstan::optim
