// Sums in the order of the CPU kernels (optim/cpu/sum_loops.h, split.h): a block of kSumBlockElems
// goes to one warp, whose lanes are the lanes of that order; then the blocks are added one by one.
#include "capstan/optim/cpu/kernel_table.h"
#include "capstan/optim/cuda/device_vec.h"
#include "capstan/optim/cuda/launch.h"

namespace capstan::optim {
namespace {

static_assert(kSumLanes == 32, "one lane of the sum is one thread of a warp");
constexpr int kWarpsPerBlock = 8;
constexpr unsigned kAllLanes = 0xffffffffu;

// The lanes join in the fixed tree of LaneSums::total(); the result is in lane 0.
__device__ double join_lanes(double sum) {
  for (int half = kSumLanes / 2; half > 0; half /= 2) {
    sum = __dadd_rn(sum, __shfl_down_sync(kAllLanes, sum, half));
  }
  return sum;
}

__device__ double square(float x) { return __dmul_rn(x, x); }

template <DType kDtype>
__device__ double block_squares(const void* data, std::int64_t begin, std::int64_t end, int lane) {
  constexpr int kAhead = 16;  // loads in flight per thread: the sum itself is one long chain
  double sum = 0;
  std::int64_t i = begin + lane;
  for (; i + (kAhead - 1) * kSumLanes < end; i += kAhead * kSumLanes) {
    float x[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) x[k] = load_as<kDtype>(data, i + k * kSumLanes);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) sum = __dadd_rn(sum, square(x[k]));
  }
  for (; i < end; i += kSumLanes) sum = __dadd_rn(sum, square(load_as<kDtype>(data, i)));
  return join_lanes(sum);
}

__device__ double block_squares(ConstColumn column, std::int64_t begin, std::int64_t end,
                                int lane) {
  switch (column.dtype) {
    case DType::bf16:
      return block_squares<DType::bf16>(column.data, begin, end, lane);
    case DType::fp16:
      return block_squares<DType::fp16>(column.data, begin, end, lane);
    case DType::fp32:
      break;
  }
  return block_squares<DType::fp32>(column.data, begin, end, lane);
}

__device__ std::int64_t warp_of_grid() {
  return static_cast<std::int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kSumLanes;
}

// The last piece that begins at or before `block`.
__device__ std::int64_t piece_of(const SumWork& work, std::int64_t block) {
  std::int64_t low = 0;
  std::int64_t high = work.piece_count;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (work.pieces[middle].first_block <= block ? low : high) = middle;
  }
  return low;
}

__global__ void __launch_bounds__(kWarpsPerBlock* kSumLanes) square_blocks_kernel(SumWork work) {
  const std::int64_t block = work.first_block + warp_of_grid();
  if (block >= work.first_block + work.block_count) return;
  const int lane = static_cast<int>(threadIdx.x % kSumLanes);
  const SumPiece piece = work.pieces[piece_of(work, block)];
  const std::int64_t begin = (block - piece.first_block) * kSumBlockElems;
  const std::int64_t end = min(piece.elems, begin + kSumBlockElems);
  const double sum = block_squares(piece.column, begin, end, lane);
  if (lane == 0) work.blocks[block] = sum;
}

// values[0] + values[step] + …, strictly in order. A warp reads ahead; lane 0 has the result.
__device__ double add_in_order(const double* values, std::int64_t count, int step, int lane) {
  double total = 0;
  for (std::int64_t first = 0; first < count; first += kSumLanes) {
    const std::int64_t here = min(static_cast<std::int64_t>(kSumLanes), count - first);
    const double mine = lane < here ? values[(first + lane) * step] : 0.0;
    for (int k = 0; k < here; ++k) total = __dadd_rn(total, __shfl_sync(kAllLanes, mine, k));
  }
  return total;
}

__global__ void __launch_bounds__(kWarpsPerBlock* kSumLanes)
    add_blocks_kernel(SumWork work, double* sums) {
  const std::int64_t piece = warp_of_grid();
  if (piece >= work.piece_count) return;
  const int lane = static_cast<int>(threadIdx.x % kSumLanes);
  const std::int64_t begin = work.pieces[piece].first_block;
  const std::int64_t end = piece + 1 < work.piece_count ? work.pieces[piece + 1].first_block
                                                        : work.first_block + work.block_count;
  const double total = add_in_order(work.blocks + begin, end - begin, 1, lane);
  if (lane == 0) sums[piece] = total;
}

__global__ void find_kernel(const double* sums, const std::int32_t* params, std::int64_t count,
                            GradFindings* findings) {
  const int lane = static_cast<int>(threadIdx.x);
  const double squares = add_in_order(sums, count, 1, lane);
  int bad = INT32_MAX;
  for (std::int64_t i = lane; i < count; i += kSumLanes) {
    if (!isfinite(sums[i])) bad = min(bad, params[i]);
  }
  bad = __reduce_min_sync(kAllLanes, bad);
  if (lane == 0) *findings = {squares, bad == INT32_MAX ? -1.0 : static_cast<double>(bad)};
}

__global__ void gate_kernel(const GradFindings* of_ranks, int ranks, GateRule rule,
                            GateResult* result) {
  GradFindings all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.squares = __dadd_rn(all.squares, of_ranks[rank].squares);
    const double bad = of_ranks[rank].first_bad;
    if (bad >= 0 && (all.first_bad < 0 || bad < all.first_bad)) all.first_bad = bad;
  }
  double factor = rule.gradient_factor;
  if (rule.clip_norm > 0) {
    const double norm = __dmul_rn(__dsqrt_rn(all.squares), rule.gradient_factor);
    const double excess = __ddiv_rn(__dadd_rn(norm, 1e-6), rule.clip_norm);
    factor = __ddiv_rn(factor, excess > 1.0 ? excess : 1.0);
  }
  const bool skip = rule.skip_non_finite && all.first_bad >= 0;
  *result = {{__double2float_rn(factor), skip ? 0 : 1}, all};
}

// The moments are stored first and read back, as on the CPU: a 16-bit state takes part in the
// direction as it will in the second phase.
__global__ void __launch_bounds__(kWarpsPerBlock* kSumLanes)
    lamb_prepare_kernel(LambConstants c, Span span, double* blocks) {
  const std::int64_t block = warp_of_grid();
  const std::int64_t begin = block * kSumBlockElems;
  if (begin >= span.elems) return;
  const int lane = static_cast<int>(threadIdx.x % kSumLanes);
  double master = 0;
  double update = 0;
  const std::int64_t end = min(span.elems, begin + kSumBlockElems);
  for (std::int64_t i = begin + lane; i < end; i += kSumLanes) {
    Lanes<DeviceVec> x;
    x.grad.value = load_one(span.grad.data, span.grad.dtype, i);
    x.master.value = load_one(span.master.data, span.master.dtype, i);
    for (int s = 0; s < 2; ++s) {
      x.states[s].value = load_one(span.states[s].data, span.states[s].dtype, i);
    }
    update_lamb_moments(c, x);
    for (int s = 0; s < 2; ++s) {
      store_one(x.states[s].value, span.states[s].data, span.states[s].dtype, i);
      x.states[s].value = load_one(span.states[s].data, span.states[s].dtype, i);
    }
    master = __dadd_rn(master, square(x.master.value));
    update = __dadd_rn(update, square(lamb_direction(c, x).value));
  }
  master = join_lanes(master);
  update = join_lanes(update);
  if (lane == 0) {
    blocks[2 * block] = master;
    blocks[2 * block + 1] = update;
  }
}

__global__ void lamb_add_kernel(const double* blocks, std::int64_t count, double* sums) {
  const int lane = static_cast<int>(threadIdx.x);
  for (int which = 0; which < 2; ++which) {
    const double total = add_in_order(blocks + which, count, 2, lane);
    if (lane == 0) sums[which] = total;
  }
}

unsigned warps_grid(std::int64_t warps) {
  return static_cast<unsigned>((warps + kWarpsPerBlock - 1) / kWarpsPerBlock);
}

}  // namespace

std::int64_t sum_block_count(std::int64_t elems) {
  return (elems + kSumBlockElems - 1) / kSumBlockElems;
}

void sum_squares(const SumWork& work, double* sums, const CudaRun& run) {
  if (work.piece_count == 0) return;
  constexpr int kThreads = kWarpsPerBlock * kSumLanes;
  square_blocks_kernel<<<warps_grid(work.block_count), kThreads, 0, stream_of(run)>>>(work);
  check_launch("optim: sum_squares");
  add_blocks_kernel<<<warps_grid(work.piece_count), kThreads, 0, stream_of(run)>>>(work, sums);
  check_launch("optim: sum_squares");
}

void find_in_sums(const double* sums, const std::int32_t* params, std::int64_t piece_count,
                  GradFindings* findings, const CudaRun& run) {
  find_kernel<<<1, kSumLanes, 0, stream_of(run)>>>(sums, params, piece_count, findings);
  check_launch("optim: find_in_sums");
}

void decide_gate(const GradFindings* of_ranks, int ranks, const GateRule& rule, GateResult* result,
                 const CudaRun& run) {
  gate_kernel<<<1, 1, 0, stream_of(run)>>>(of_ranks, ranks, rule, result);
  check_launch("optim: decide_gate");
}

void lamb_prepare(const HyperParams& hyper, const StepScalars& scalars, const Span& span,
                  double* blocks, double* sums, const CudaRun& run) {
  constexpr int kThreads = kWarpsPerBlock * kSumLanes;
  const std::int64_t count = sum_block_count(span.elems);
  lamb_prepare_kernel<<<warps_grid(count), kThreads, 0, stream_of(run)>>>(
      lamb_constants(hyper, scalars), span, blocks);
  check_launch("optim: lamb_prepare");
  lamb_add_kernel<<<1, kSumLanes, 0, stream_of(run)>>>(blocks, count, sums);
  check_launch("optim: lamb_prepare");
}

}  // namespace capstan::optim
