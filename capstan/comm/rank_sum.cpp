#include "capstan/comm/rank_sum.h"

#include <algorithm>
#include <cassert>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "capstan/comm/rank_sum_loops.h"

namespace capstan::comm {
namespace {

SumLoop find_sum_loop(at::ScalarType out, at::ScalarType piece) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return avx2 ? find_sum_loop_avx2(out, piece) : find_sum_loop_portable(out, piece);
}

// The same additions in the same order with libtorch's kernels: fp32 += 16-bit is computed in fp32.
void sum_on_device(at::Tensor& out, std::span<const at::Tensor> pieces, bool accumulate) {
  const c10::NoGradGuard no_grad;
  const at::ScalarType piece = pieces[0].scalar_type();
  const bool widen = piece == at::kHalf || piece == at::kBFloat16;
  const auto is_out = [&](const at::Tensor& piece) { return piece.is_alias_of(out); };
  const bool in_place = !accumulate && out.scalar_type() == (widen ? at::kFloat : piece) &&
                        std::ranges::none_of(pieces, is_out);
  at::Tensor sum = in_place ? out : at::empty_like(out, widen ? at::kFloat : piece);
  sum.copy_(pieces[0]);
  for (const at::Tensor& next : pieces.subspan(1)) {
    sum.add_(next);
  }
  if (accumulate) {
    sum.add_(out);
  }
  if (!in_place) {
    out.copy_(sum);
  }
}

}  // namespace

bool can_sum(at::ScalarType out, at::ScalarType piece) {
  return find_sum_loop_portable(out, piece) != nullptr;
}

void sum_in_rank_order(const SumMemory& memory, bool accumulate) {
  const SumLoop loop = find_sum_loop(memory.out_dtype, memory.piece_dtype);
  assert(loop != nullptr);  // Group refuses other pairs before anything is sent
  loop(memory.out, memory.pieces, memory.elems, accumulate);
}

void sum_in_rank_order(at::Tensor& out, std::span<const at::Tensor> pieces, bool accumulate) {
  if (!out.is_cpu()) {
    sum_on_device(out, pieces, accumulate);
    return;
  }
  std::vector<const void*> memory;
  memory.reserve(pieces.size());
  for (const at::Tensor& piece : pieces) {
    memory.push_back(piece.const_data_ptr());
  }
  sum_in_rank_order({.out = out.mutable_data_ptr(),
                     .out_dtype = out.scalar_type(),
                     .pieces = memory,
                     .piece_dtype = pieces[0].scalar_type(),
                     .elems = out.numel()},
                    accumulate);
}

}  // namespace capstan::comm
