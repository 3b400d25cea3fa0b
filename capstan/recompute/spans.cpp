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

std::vector<Span> spans_of(const Options& options, int block_count) {
  if (options.span_blocks <= 0) return cut_into_spans(block_count, options.checkpoint_count);
  std::vector<Span> result;
  for (int begin = 0; begin < block_count; begin += options.span_blocks) {
    result.push_back({begin, std::min(begin + options.span_blocks, block_count)});
  }
  return result;
}

}  // namespace capstan::recompute
