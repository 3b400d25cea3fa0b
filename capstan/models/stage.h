// A model as one stage of a pipeline: what it computes between the stage before and the one after.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/models/sequences.h"

namespace capstan::models {

// Shapes: B batch, T tokens, C width, V padded vocabulary.
class Stage {
 public:
  virtual ~Stage() = default;

  // The first takes token ids [B, T], the others what the one before gave, [B, T, C]; the last
  // gives logits [B, T, V].
  virtual at::Tensor run(const at::Tensor& x) = 0;
  // Of the last one's logits: as Model::forward().
  virtual at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets) = 0;

  // As Model::next_logits(), of which this is a part: `hidden` is what the stage before gave (not
  // used by the first), the last gives logits of the last tokens, [B, vocab].
  virtual std::vector<at::Tensor> extend(std::span<Sequences> all,
                                         std::vector<at::Tensor> hidden) = 0;

  // Parameters that the first stage and the last both have.
  virtual std::vector<std::string> shared_by_ends() const = 0;
};

}  // namespace capstan::models
