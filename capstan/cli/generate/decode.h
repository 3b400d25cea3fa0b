// Runs searches with a model: one pass for the next token of each, until all are done.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <c10/core/Device.h>

#include "capstan/cli/generate/search.h"
#include "capstan/models/sequences.h"

namespace capstan::cli::generate {

struct DecodeOptions {
  std::int64_t context = 1024;  // the model looks at so many last tokens
  c10::Device device = c10::Device(c10::kCPU);
  int batch = 8;      // searches in work at a time
  bool cache = true;  // keys and values of tokens are kept; false: computed anew in each pass
};

// A model, as models::Model::next_logits().
using NextLogits = std::function<std::vector<at::Tensor>(std::span<models::Sequences> all)>;
// Whether any rank has work, told whether this one has; asked before every pass, so that all ranks
// make equally many.
using AnyRank = std::function<bool(bool mine)>;

// Collective as far as `next_logits` and `any_rank` are. What a search makes depends on no other.
void run_searches(std::span<const std::unique_ptr<Search>> searches, const NextLogits& next_logits,
                  const AnyRank& any_rank, const DecodeOptions& options);

}  // namespace capstan::cli::generate
