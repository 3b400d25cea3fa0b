#include "capstan/tensor_parallel/cut.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/layout/partition.h"

namespace capstan::tensor_parallel {

using layout::ElemRange;

ElemRange even_part(std::int64_t items, Place place) {
  if (items < place.ranks) {
    throw ConfigError(
        {.what = fmt::format("{} cannot be cut into {} parts", items, place.ranks),
         .where = "tensor parallelism",
         .fix = "use fewer tensor ranks; every one needs a part of every weight that is cut"});
  }
  const std::vector<std::int64_t> cuts = layout::even_cuts(items, place.ranks);
  const auto part = static_cast<std::size_t>(place.rank);
  return {cuts[part], cuts[part + 1]};
}

std::int64_t WeightCut::length() const {
  std::int64_t length = 0;
  for (const ElemRange& range : ranges) length += range.size();
  return length;
}

std::vector<std::int64_t> WeightCut::local_shape() const {
  std::vector<std::int64_t> local = shape;
  local[dim] = length();
  return local;
}

std::vector<layout::Box> WeightCut::boxes() const {
  std::vector<layout::Box> boxes;
  for (const ElemRange& range : ranges) {
    boxes.push_back(layout::whole_box(shape));
    boxes.back().offset[dim] = range.begin;
    boxes.back().length[dim] = range.size();
  }
  return boxes;
}

bool WeightCut::is_whole() const { return length() == shape[dim]; }

WeightCut cut_evenly(std::vector<std::int64_t> shape, std::size_t dim, Place place) {
  const std::int64_t length = shape[dim];
  return cut_blocks(std::move(shape), dim, std::span(&length, 1), place);
}

WeightCut cut_blocks(std::vector<std::int64_t> shape, std::size_t dim,
                     std::span<const std::int64_t> blocks, Place place) {
  if (std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0}) != shape[dim]) {
    throw InternalError({.what = fmt::format("blocks of {} are not a dimension of {}",
                                             fmt::join(blocks, ", "), shape[dim])});
  }
  std::vector<ElemRange> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t block : blocks) {
    const ElemRange part = even_part(block, place);
    ranges.push_back({begin + part.begin, begin + part.end});
    begin += block;
  }
  return cut_ranges(std::move(shape), dim, ranges);
}

WeightCut cut_ranges(std::vector<std::int64_t> shape, std::size_t dim,
                     std::span<const ElemRange> ranges) {
  WeightCut cut{std::move(shape), dim, {}};
  for (const ElemRange& range : ranges) {
    if (range.size() == 0) continue;
    if (!cut.ranges.empty() && cut.ranges.back().end == range.begin) {
      cut.ranges.back().end = range.end;
    } else {
      cut.ranges.push_back(range);
    }
  }
  return cut;
}

WeightCut first_rows(WeightCut cut, std::int64_t rows) {
  cut.shape.front() = rows;
  if (cut.dim != 0) return cut;
  std::vector<ElemRange> kept;
  for (const ElemRange& range : cut.ranges) kept.push_back(layout::intersect(range, {0, rows}));
  return cut_ranges(std::move(cut.shape), cut.dim, kept);
}

std::int64_t VocabCut::used_rows() const {
  return std::clamp<std::int64_t>(used - rows.begin, 0, rows.size());
}

VocabCut cut_vocabulary(std::int64_t used, std::int64_t all, Place place) {
  return {used, all, even_part(all, place)};
}

}  // namespace capstan::tensor_parallel
