// Which attention heads a rank of a tensor group has. Plain values, no libtorch.
#pragma once

#include <cstdint>
#include <vector>

#include "capstan/tensor_parallel/cut.h"

namespace capstan::tensor_parallel {

// Of a whole attention layer. With fewer key heads than query heads, every key head (and its value
// head) serves as many neighbouring query heads.
struct Heads {
  std::int64_t query = 1;
  std::int64_t key = 1;  // divides query
  std::int64_t width = 1;
  bool operator==(const Heads&) const = default;
};

// A rank has the query heads of its part, and every key head that they look at.
struct HeadCut {
  Heads all;
  layout::ElemRange query;
  layout::ElemRange key;
  // Whether some key heads are on several ranks; equal on all ranks.
  bool keys_shared = false;

  // Of each of this rank's key heads: how many of its query heads look at it.
  std::vector<std::int64_t> queries_per_key() const;
  bool operator==(const HeadCut&) const = default;
};

// Key heads are cut evenly; where ranks outnumber them, query heads are, and key heads are on every
// rank that needs them. Throws ConfigError where there are fewer query heads than ranks, or where
// key heads do not divide them.
HeadCut cut_heads(const Heads& heads, Place place);

// What a rank has of a weight along whose dimension `dim` heads lie side by side.
WeightCut cut_queries(std::vector<std::int64_t> shape, std::size_t dim, const HeadCut& heads);
WeightCut cut_keys(std::vector<std::int64_t> shape, std::size_t dim, const HeadCut& heads);
// All query heads, then all key heads, then all value heads.
WeightCut cut_fused_qkv(std::vector<std::int64_t> shape, std::size_t dim, const HeadCut& heads);

}  // namespace capstan::tensor_parallel
