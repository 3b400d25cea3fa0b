// Which elements of a group's tensors one rank has in DeepSpeed's layout. Pure arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace capstan::checkpoint {

struct FlatPiece {
  int tensor = -1;  // index; -1: zeros that fill up
  std::int64_t begin = 0;
  std::int64_t elems = 0;  // never 0
  bool operator==(const FlatPiece&) const = default;
};

// In order; together as long on every rank. Stages 1 and 2: the rank-th of equal parts of all
// tensors end to end, filled up to a multiple of two elements per rank. Stage 3: the rank-th of
// equal parts of each tensor.
std::vector<FlatPiece> flat_part(std::span<const std::int64_t> sizes, int stage, int rank,
                                 int ranks);

}  // namespace capstan::checkpoint
