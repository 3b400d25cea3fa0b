// Which token follows, from the logits of all: the likeliest, or one drawn from the likely ones.
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "capstan/data/tokenizer.h"

namespace capstan::cli::generate {

// Applied in this order.
struct DrawOptions {
  double temperature = 1.0;  // lower: more likely, duller text
  std::int64_t top_k = 50;   // only the so many likeliest tokens; 0: all
  double top_p = 1.0;        // of these, the likeliest that together reach this probability
};

// `logits` is 1-D.
data::Token likeliest_token(const at::Tensor& logits);
data::Token draw_token(const at::Tensor& logits, const DrawOptions& options,
                       at::Generator& generator);

}  // namespace capstan::cli::generate
