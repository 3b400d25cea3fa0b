// LAMB on the CPU, in two phases, because a slot's step length depends on the norms of the whole
// slot while a rank holds only pieces of it: prepare every piece, add the sums of a slot's pieces
// over the ranks, then apply.
#pragma once

#include "capstan/optim/cpu/kernel_table.h"
#include "capstan/optim/update.h"

namespace capstan::optim {

// Updates the moments; returns this piece's share of the slot's norms.
LambSums lamb_prepare(const HyperParams& hyper, const StepScalars& scalars, const Span& span,
                      const CpuRun& run);

// ||parameter|| / ||update||, within [min_coeff, max_coeff]; 1 when either is zero.
double lamb_trust_ratio(const HyperParams& hyper, const LambSums& whole_slot);

// Moves the parameters; reads the moments that lamb_prepare left, not the gradient.
void lamb_apply(const HyperParams& hyper, const StepScalars& scalars, double trust_ratio,
                const Span& span, const CpuRun& run);

}  // namespace capstan::optim
