// The optimizer step on a GPU: the updates of optim/update.h and optim/lamb.h over columns in
// device memory, in the same bits, enqueued on a stream. Nothing here waits for the device.
#pragma once

#include <cstdint>
#include <span>

#include "capstan/optim/constants.h"
#include "capstan/optim/options.h"
#include "capstan/optim/span.h"

namespace capstan::optim {

// Whether a step is applied and with which factor, decided on the device from the gradients there,
// so that the host need not wait before it enqueues the update.
struct StepGate {
  float grad_factor = 1.0f;  // takes the place of StepScalars::grad_factor
  std::int32_t apply = 1;    // 0: the update changes nothing
};

struct CudaRun {
  void* stream = nullptr;          // a cudaStream_t
  const StepGate* gate = nullptr;  // in device memory; null: StepScalars decide
};

// As update() of optim/update.h.
void update(Kind kind, const HyperParams& hyper, const StepScalars& scalars, const Span& span,
            const CudaRun& run);

// A range whose sum of squares is wanted. In device memory, with pieces of one list side by side.
struct SumPiece {
  ConstColumn column;
  std::int64_t elems = 0;
  std::int64_t first_block = 0;  // the blocks of all pieces before it
};

// Blocks of a piece: partial sums that have to be kept while the sums are made.
std::int64_t sum_block_count(std::int64_t elems);

// sums[i] = the sum of squares of pieces[i], as sum_squares() of optim/column_ops.h adds it.
// `pieces` and `blocks` lie in device memory; `blocks` holds one value per block of all pieces.
struct SumWork {
  const SumPiece* pieces = nullptr;
  std::int64_t piece_count = 0;
  std::int64_t first_block = 0;  // of the first piece: a list may be summed in parts
  std::int64_t block_count = 0;
  double* blocks = nullptr;  // of the whole list
};
void sum_squares(const SumWork& work, double* sums, const CudaRun& run);

// What one rank found in its gradients; the ranks exchange it.
struct GradFindings {
  double squares = 0;
  double first_bad = -1;  // the first parameter with an inf or NaN, in the plan's order; -1: none
};

// Adds the sums of all pieces in order. params[i] is the parameter that piece i belongs to. All in
// device memory.
void find_in_sums(const double* sums, const std::int32_t* params, std::int64_t piece_count,
                  GradFindings* findings, const CudaRun& run);

struct GateRule {
  double gradient_factor = 1;  // from the summed gradient to the averaged, unscaled one
  double clip_norm = 0;        // 0: no clipping
  bool skip_non_finite = false;
};

// What the host would compute from the findings of all ranks, and what it is told.
struct GateResult {
  StepGate gate;
  GradFindings all;
};
void decide_gate(const GradFindings* of_ranks, int ranks, const GateRule& rule, GateResult* result,
                 const CudaRun& run);

// LAMB's two phases. sums: two doubles in device memory, the piece's squares of master and update;
// blocks: two values per block of the span.
void lamb_prepare(const HyperParams& hyper, const StepScalars& scalars, const Span& span,
                  double* blocks, double* sums, const CudaRun& run);
void lamb_apply(const HyperParams& hyper, const StepScalars& scalars, double trust_ratio,
                const Span& span, const CudaRun& run);

}  // namespace capstan::optim
