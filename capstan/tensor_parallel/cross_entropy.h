// Cross-entropy of logits that are split over a tensor group by class; nobody gathers them.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "capstan/comm/group.h"
#include "capstan/tensor_parallel/cut.h"

namespace capstan::tensor_parallel {

struct CrossEntropyOptions {
  std::int64_t ignored = -100;  // a target that is left out
  double label_smoothing = 0;   // as torch has it: spread evenly over the used classes
};

// The mean over targets that are not left out, in fp32 whatever the dtype of the logits: one
// number, with the same bits on every rank. logits: [n, cut.rows] of this rank; columns of rows
// that are not used count as if they were -infinity, and get no gradient. targets: [n], equal on
// all ranks. A target without a class: ConfigError on the CPU, NaN on other devices, which are not
// waited for. What travels: two numbers of each row and rank (three with smoothing), at once.
at::Tensor cross_entropy(comm::Group& group, const at::Tensor& logits, const at::Tensor& targets,
                         const VocabCut& cut, const CrossEntropyOptions& options = {});

}  // namespace capstan::tensor_parallel
