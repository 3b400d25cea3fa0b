// Cuts a row of blocks into spans that are checkpointed together. Pure arithmetic.
#pragma once

#include <optional>
#include <vector>

#include "capstan/recompute/options.h"

namespace capstan::recompute {

// Half-open range of blocks.
struct Span {
  int begin = 0;
  int end = 0;
  bool operator==(const Span&) const = default;
};

// Spans that cover all blocks in order, their lengths differing by at most one. `count` is cut to
// block_count; unset gives one span per block. Throws ConfigError when count is not positive.
std::vector<Span> cut_into_spans(int block_count, std::optional<int> count);

// As the options say: spans of span_blocks, else checkpoint_count of them.
std::vector<Span> spans_of(const Options& options, int block_count);

}  // namespace capstan::recompute
