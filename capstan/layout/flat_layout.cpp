#include "capstan/layout/flat_layout.h"

#include <algorithm>
#include <cassert>

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::layout {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

ElemRange intersect(ElemRange a, ElemRange b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

FlatLayout::FlatLayout(std::span<const std::int64_t> numels, int world_size,
                       std::int64_t align_elems)
    : world_size_(world_size) {
  if (world_size < 1 || align_elems < 1) {
    throw ConfigError({.what = fmt::format("a flat layout for {} ranks, aligned to {} elements",
                                           world_size, align_elems),
                       .where = "layout::FlatLayout",
                       .fix = "both must be at least 1"});
  }
  slots_.reserve(numels.size());
  std::int64_t next = 0;
  for (const std::int64_t numel : numels) {
    if (numel < 0) {
      throw ConfigError({.what = fmt::format("parameter {} has {} elements", slots_.size(), numel),
                         .where = "layout::FlatLayout",
                         .fix = "give element counts of at least 0"});
    }
    next = round_up(next, align_elems);
    slots_.push_back({next, next + numel});
    next += numel;
  }
  // A parameter alone is cut into equal parts; between several, shards are as aligned as slots.
  const std::int64_t part = numels.size() == 1 ? 1 : align_elems;
  shard_elems_ = round_up(next, world_size * part) / world_size;
}

ElemRange FlatLayout::shard(int rank) const {
  assert(0 <= rank && rank < world_size_);
  return {rank * shard_elems_, (rank + 1) * shard_elems_};
}

std::vector<SlotPiece> FlatLayout::pieces(int rank) const {
  const ElemRange mine = shard(rank);
  std::vector<SlotPiece> result;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const ElemRange both = intersect(slots_[i], mine);
    if (both.size() == 0) continue;
    result.push_back({.slot = static_cast<int>(i),
                      .in_slot = {both.begin - slots_[i].begin, both.end - slots_[i].begin},
                      .in_shard = {both.begin - mine.begin, both.end - mine.begin}});
  }
  return result;
}

}  // namespace capstan::layout
