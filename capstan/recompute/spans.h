// Cuts a row of blocks into spans that are checkpointed together. Pure arithmetic.
#pragma once

#include <optional>
#include <vector>

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

}  // namespace capstan::recompute
