#include "capstan/optim/cuda/update.h"

#include "capstan/optim/cuda/device_vec.h"
#include "capstan/optim/cuda/launch.h"
#include "capstan/optim/update.h"

namespace capstan::optim {
namespace {

constexpr int kUpdateThreads = 256;

// The part of a rule that every thread has in registers; the gate replaces what only the device
// knows. False: the step is skipped.
template <typename Rule>
__device__ bool pass_gate(Rule& rule, const StepGate* gate) {
  if (gate == nullptr) return true;
  rule.c.grad_factor = gate->grad_factor;
  return gate->apply != 0;
}

template <typename Rule>
__device__ void update_four(const Rule& rule, const Span& span, std::int64_t i) {
  float grad[4], master[4], states[kMaxStates][4];
  load_four(span.grad.data, span.grad.dtype, i, grad);
  load_four(span.master.data, span.master.dtype, i, master);
  for (int s = 0; s < Rule::kStates; ++s) {
    load_four(span.states[s].data, span.states[s].dtype, i, states[s]);
  }
  for (int k = 0; k < 4; ++k) {
    Lanes<DeviceVec> x{{grad[k]}, {master[k]}, {}};
    for (int s = 0; s < Rule::kStates; ++s) x.states[s].value = states[s][k];
    rule(x);
    master[k] = x.master.value;
    for (int s = 0; s < Rule::kStates; ++s) states[s][k] = x.states[s].value;
  }
  for (int s = 0; s < Rule::kStates; ++s) {
    store_four(states[s], span.states[s].data, span.states[s].dtype, i);
  }
  store_four(master, span.master.data, span.master.dtype, i);
  if (span.param.data != nullptr) store_four(master, span.param.data, span.param.dtype, i);
}

template <typename Rule>
__device__ void update_one(const Rule& rule, const Span& span, std::int64_t i) {
  Lanes<DeviceVec> x;
  x.grad.value = load_one(span.grad.data, span.grad.dtype, i);
  x.master.value = load_one(span.master.data, span.master.dtype, i);
  for (int s = 0; s < Rule::kStates; ++s) {
    x.states[s].value = load_one(span.states[s].data, span.states[s].dtype, i);
  }
  rule(x);
  for (int s = 0; s < Rule::kStates; ++s) {
    store_one(x.states[s].value, span.states[s].data, span.states[s].dtype, i);
  }
  store_one(x.master.value, span.master.data, span.master.dtype, i);
  if (span.param.data != nullptr) store_one(x.master.value, span.param.data, span.param.dtype, i);
}

template <typename Rule>
__global__ void __launch_bounds__(kUpdateThreads)
    update_kernel(Rule rule, Span span, const StepGate* gate, bool aligned) {
  if (!pass_gate(rule, gate)) return;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t fours = aligned ? span.elems / 4 : 0;
  for (std::int64_t i = first; i < fours; i += stride) update_four(rule, span, 4 * i);
  for (std::int64_t i = 4 * fours + first; i < span.elems; i += stride) update_one(rule, span, i);
}

__device__ Lanes<DeviceVec> load_moments(const Span& span, std::int64_t i) {
  Lanes<DeviceVec> x;
  x.master.value = load_one(span.master.data, span.master.dtype, i);
  for (int s = 0; s < 2; ++s) {
    x.states[s].value = load_one(span.states[s].data, span.states[s].dtype, i);
  }
  return x;
}

__global__ void __launch_bounds__(kUpdateThreads) lamb_apply_kernel(LambApplyRule rule, Span span) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = first; i < span.elems; i += stride) {
    Lanes<DeviceVec> x = load_moments(span, i);
    rule(x);
    store_one(x.master.value, span.master.data, span.master.dtype, i);
    if (span.param.data != nullptr) store_one(x.master.value, span.param.data, span.param.dtype, i);
  }
}

// Whether four elements of the column can be reached in one access.
bool fits_fours(const void* data, DType dtype) {
  const auto bytes = static_cast<std::uintptr_t>(4 * size_bytes(dtype));
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

template <typename Rule>
void launch_update(const Rule& rule, const Span& span, const CudaRun& run) {
  if (span.elems == 0) return;
  bool aligned = fits_fours(span.master.data, span.master.dtype) &&
                 fits_fours(span.grad.data, span.grad.dtype) &&
                 fits_fours(span.param.data, span.param.dtype);
  for (int s = 0; s < Rule::kStates; ++s) {
    aligned = aligned && fits_fours(span.states[s].data, span.states[s].dtype);
  }
  const std::int64_t items = aligned ? (span.elems + 3) / 4 : span.elems;
  update_kernel<<<blocks_for(items, kUpdateThreads), kUpdateThreads, 0, stream_of(run)>>>(
      rule, span, run.gate, aligned);
  check_launch("optim: update");
}

}  // namespace

void update(Kind kind, const HyperParams& hyper, const StepScalars& scalars, const Span& span,
            const CudaRun& run) {
  switch (kind) {
    case Kind::adam:
    case Kind::adamw:
      return launch_update(AdamRule{adam_constants(kind, hyper, scalars)}, span, run);
    case Kind::sgd:
      if (state_names(kind, hyper).empty()) {
        return launch_update(SgdRule{sgd_constants(hyper, scalars)}, span, run);
      }
      return launch_update(SgdMomentumRule{sgd_constants(hyper, scalars)}, span, run);
    case Kind::lion:
      return launch_update(LionRule{lion_constants(hyper, scalars)}, span, run);
    case Kind::adagrad:
      return launch_update(AdagradRule{adagrad_constants(hyper, scalars)}, span, run);
    case Kind::lamb:
      break;
  }
  refuse_one_phase_lamb();
}

void lamb_apply(const HyperParams& hyper, const StepScalars& scalars, double trust_ratio,
                const Span& span, const CudaRun& run) {
  if (span.elems == 0) return;
  const LambApplyRule rule = {.c = lamb_constants(hyper, scalars),
                              .minus_step = lamb_minus_step(hyper, scalars, trust_ratio)};
  lamb_apply_kernel<<<blocks_for(span.elems, kUpdateThreads), kUpdateThreads, 0, stream_of(run)>>>(
      rule, span);
  check_launch("optim: lamb_apply");
}

}  // namespace capstan::optim
