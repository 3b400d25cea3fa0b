// An embedding whose rows are split over a tensor group.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "capstan/tensor_parallel/cut.h"
#include "capstan/tensor_parallel/region.h"

namespace capstan::tensor_parallel {

// weight: [cut.rows, width]. ids: any shape, equal on all ranks. Gives [ids..., width], as
// activations lie outside: of each id the row, from the rank that has it. The weight's gradient is
// this rank's alone; the row `padding` gets none. An id without a row: ConfigError on the CPU, NaN
// on other devices, which are not waited for.
at::Tensor vocab_embedding(const Region& region, const at::Tensor& ids, const at::Tensor& weight,
                           const VocabCut& cut, std::optional<std::int64_t> padding = {});

}  // namespace capstan::tensor_parallel
