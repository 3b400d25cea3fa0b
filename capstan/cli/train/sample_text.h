// Lets a language model go on from a prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/data/tokenizer.h"

namespace capstan::cli::train {

struct SampleOptions {
  std::int64_t count = 300;     // tokens to make
  std::int64_t context = 1024;  // the model looks at so many last tokens
  double temperature = 0.8;     // lower: more likely, duller text
  std::int64_t top_k = 40;      // only the so many likeliest tokens are drawn from
  std::uint64_t seed = 1234;
};

// [1, T] token numbers -> [1, T, V] logits.
using LogitsFunction = std::function<at::Tensor(const at::Tensor& ids)>;

// The prompt and what follows it. Draws from a generator of its own, so that all ranks of a
// sharded model take the same tokens.
std::vector<data::Token> sample_tokens(const LogitsFunction& logits,
                                       std::vector<data::Token> prompt, at::Device device,
                                       const SampleOptions& options);

}  // namespace capstan::cli::train
