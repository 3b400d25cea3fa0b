// How a weight is cut between the ranks of a tensor group. Plain values, no libtorch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "capstan/layout/box.h"
#include "capstan/layout/flat_layout.h"

namespace capstan::tensor_parallel {

// One rank of a tensor group.
struct Place {
  int rank = 0;
  int ranks = 1;
};

// The part of `items` that a rank has: sizes differ by at most one, the larger ones first. Throws
// ConfigError where ranks would be left without any.
layout::ElemRange even_part(std::int64_t items, Place place);

// What one rank has of a weight: some ranges of one dimension, side by side in its own tensor.
struct WeightCut {
  std::vector<std::int64_t> shape;  // of the whole weight
  std::size_t dim = 0;
  std::vector<layout::ElemRange> ranges;  // ascending; none empty; neighbours do not touch

  std::int64_t length() const;  // of this dimension, in the rank's tensor
  std::vector<std::int64_t> local_shape() const;
  std::vector<layout::Box> boxes() const;  // of the whole weight, one for each range
  bool is_whole() const;
  bool operator==(const WeightCut&) const = default;
};

// Output rows of a column linear, input columns of a row linear, rows of an embedding.
WeightCut cut_evenly(std::vector<std::int64_t> shape, std::size_t dim, Place place);

// Several matrices fused side by side along `dim`, of these lengths: a part of each of them.
// Throws InternalError unless the lengths add up to the dimension.
WeightCut cut_blocks(std::vector<std::int64_t> shape, std::size_t dim,
                     std::span<const std::int64_t> blocks, Place place);

// Ranges that touch become one.
WeightCut cut_ranges(std::vector<std::int64_t> shape, std::size_t dim,
                     std::span<const layout::ElemRange> ranges);

// The same cut of the weight's first `rows` rows alone; may leave a rank with none.
WeightCut first_rows(WeightCut cut, std::int64_t rows);

// The rows of a vocabulary that a rank has. Rows from `used` on exist inside only.
struct VocabCut {
  std::int64_t used = 0;
  std::int64_t all = 0;
  layout::ElemRange rows;

  // How many of `rows` are used; these come first.
  std::int64_t used_rows() const;
  bool operator==(const VocabCut&) const = default;
};
VocabCut cut_vocabulary(std::int64_t used, std::int64_t all, Place place);

}  // namespace capstan::tensor_parallel
