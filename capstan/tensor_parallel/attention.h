// Attention by heads, split over a tensor group. Weights have torch's shape [out, in].
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "capstan/tensor_parallel/heads.h"
#include "capstan/tensor_parallel/region.h"

namespace capstan::tensor_parallel {

// A parameter along whose dimension `dim` this rank's key (or value) heads lie: the same tensor;
// the gradient of a head that several ranks have is the sum over them. The same where none is
// shared.
at::Tensor share_keys(comm::Group& group, const at::Tensor& parameter, std::int64_t dim,
                      const HeadCut& heads);

struct AttentionOptions {
  bool causal = true;
  double dropout = 0;  // of attention weights; drawn by each rank for its own heads
};

// Of this rank's heads alone; nothing travels. query: [batch, tokens, its query heads x width];
// keys and values likewise with its key heads. Gives query's shape.
at::Tensor attend(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                  const HeadCut& heads, const AttentionOptions& options = {});

// This rank's parts. Biases may be undefined; that of `out` is whole.
struct AttentionWeights {
  at::Tensor query, key, value, out;
  at::Tensor query_bias, key_bias, value_bias, out_bias;
};

// x: [batch, tokens, width], as activations lie outside; so is the result. One sum over ranks in
// forward, one in backward.
at::Tensor attention(const Region& region, const at::Tensor& x, const AttentionWeights& weights,
                     const HeadCut& heads, const AttentionOptions& options = {});

}  // namespace capstan::tensor_parallel
