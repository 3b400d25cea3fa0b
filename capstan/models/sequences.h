// What a language model goes on from when it generates text.
// Shapes: B batch, T tokens, C width.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace capstan::models {

// What attention remembers of the tokens it has seen; undefined before the first. Every kind of
// model keeps tensors whose dim 0 is the sequence and dim 2 the token.
struct KeyValues {
  at::Tensor keys;    // [B, heads of keys, T, C / heads]
  at::Tensor values;  // same
};

// Token sequences of equal length that a model goes on with, and what it remembers of them.
struct Sequences {
  at::Tensor ids;               // [B, T]: the tokens that follow those remembered
  std::vector<KeyValues> seen;  // by block; empty: nothing is remembered

  std::int64_t seen_tokens() const { return seen.empty() ? 0 : seen.front().keys.size(2); }
};

}  // namespace capstan::models
