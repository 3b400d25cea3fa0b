// The local half of an ordered reduction: add the ranks' pieces in rank order.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace capstan::comm {

// out[i] = pieces[0][i] + pieces[1][i] + …, added from left to right, in fp32 for fp32, fp16 and
// bf16, in fp64 for fp64, wrapping for integers, and rounded once to out's dtype; with
// `accumulate`, the rounded-free sum is added to what out holds. One pass, no temporaries.
// Every piece has out.numel() elements of one dtype and lies on out's device. Floating pieces may
// have another floating dtype than out (fp64 and integers may not). `out` may be pieces[r].
void sum_in_rank_order(at::Tensor& out, std::span<const at::Tensor> pieces, bool accumulate);

// The same over raw host memory.
struct SumMemory {
  void* out = nullptr;
  at::ScalarType out_dtype = at::kFloat;
  std::span<const void* const> pieces;
  at::ScalarType piece_dtype = at::kFloat;
  std::int64_t elems = 0;  // of out and of each piece
};
void sum_in_rank_order(const SumMemory& memory, bool accumulate);

// Whether the two can be combined; the rest of comm refuses others at its edge.
bool can_sum(at::ScalarType out, at::ScalarType piece);

}  // namespace capstan::comm
