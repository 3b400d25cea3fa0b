#include "capstan/recompute/spans.h"

#include <algorithm>
#include <string>

#include "capstan/base/error.h"

namespace capstan::recompute {

std::vector<Span> cut_into_spans(int block_count, std::optional<int> count) {
  if (count.has_value() && *count <= 0) {
    throw ConfigError(
        {.what = "the number of activation checkpoints is " + std::to_string(*count),
         .where = "recompute checkpoint_count",
         .fix = "give a positive number, or leave it out to get one checkpoint per block"});
  }
  const int spans = std::min(count.value_or(block_count), block_count);
  std::vector<Span> result;
  result.reserve(static_cast<std::size_t>(spans));
  for (int i = 0; i < spans; ++i) {
    result.push_back({block_count * i / spans, block_count * (i + 1) / spans});
  }
  return result;
}

}  // namespace capstan::recompute
