#include "capstan/tensor_parallel/heads.h"

#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::tensor_parallel {
namespace {

using layout::ElemRange;

ElemRange elems_of(const ElemRange& heads, std::int64_t width, std::int64_t first = 0) {
  return {(first + heads.begin) * width, (first + heads.end) * width};
}

}  // namespace

std::vector<std::int64_t> HeadCut::queries_per_key() const {
  const std::int64_t shared_by = all.query / all.key;
  std::vector<std::int64_t> counts;
  for (std::int64_t head = key.begin; head < key.end; ++head) {
    counts.push_back(intersect(query, {head * shared_by, (head + 1) * shared_by}).size());
  }
  return counts;
}

HeadCut cut_heads(const Heads& heads, Place place) {
  if (heads.key < 1 || heads.query % heads.key != 0) {
    throw ConfigError(
        {.what = fmt::format("{} key heads cannot serve {} query heads", heads.key, heads.query),
         .where = "attention",
         .fix = "let the number of key heads divide the number of query heads"});
  }
  if (heads.query < place.ranks) {
    throw ConfigError({.what = fmt::format("{} attention heads cannot be shared by {} tensor ranks",
                                           heads.query, place.ranks),
                       .where = "tensor parallelism",
                       .fix = fmt::format("use at most {} tensor ranks", heads.query)});
  }
  const std::int64_t shared_by = heads.query / heads.key;
  HeadCut cut{.all = heads};
  if (heads.key >= place.ranks) {
    cut.key = even_part(heads.key, place);
    cut.query = elems_of(cut.key, shared_by);
    return cut;
  }
  cut.query = even_part(heads.query, place);
  cut.key = {cut.query.begin / shared_by, (cut.query.end + shared_by - 1) / shared_by};
  cut.keys_shared = true;
  return cut;
}

WeightCut cut_queries(std::vector<std::int64_t> shape, std::size_t dim, const HeadCut& heads) {
  const ElemRange mine = elems_of(heads.query, heads.all.width);
  return cut_ranges(std::move(shape), dim, std::span(&mine, 1));
}

WeightCut cut_keys(std::vector<std::int64_t> shape, std::size_t dim, const HeadCut& heads) {
  const ElemRange mine = elems_of(heads.key, heads.all.width);
  return cut_ranges(std::move(shape), dim, std::span(&mine, 1));
}

WeightCut cut_fused_qkv(std::vector<std::int64_t> shape, std::size_t dim, const HeadCut& heads) {
  const Heads& all = heads.all;
  const ElemRange ranges[] = {elems_of(heads.query, all.width),
                              elems_of(heads.key, all.width, all.query),
                              elems_of(heads.key, all.width, all.query + all.key)};
  return cut_ranges(std::move(shape), dim, ranges);
}

}  // namespace capstan::tensor_parallel
