#include "capstan/layout/box.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

namespace capstan::layout {
namespace {

std::int64_t product(std::span<const std::int64_t> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{1}, std::multiplies<>());
}

using Boxes = std::vector<const Box*>;

std::int64_t end_of(const Box& box, std::size_t dim) { return box.offset[dim] + box.length[dim]; }

bool meet(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.offset.size(); ++d) {
    if (a.offset[d] >= end_of(b, d) || b.offset[d] >= end_of(a, d)) return false;
  }
  return true;
}

// The dimension along which most boxes begin at places of their own.
std::size_t most_cut(const Boxes& boxes, std::size_t dims) {
  std::size_t best = 0;
  std::size_t most = 0;
  for (std::size_t d = 0; d < dims; ++d) {
    std::set<std::int64_t> begins;
    for (const Box* const box : boxes) begins.insert(box->offset[d]);
    if (begins.size() > most) best = d;
    most = std::max(most, begins.size());
  }
  return best;
}

// An element that two of them hold.
std::optional<std::vector<std::int64_t>> find_shared(Boxes boxes, std::size_t dims) {
  const std::size_t dim = most_cut(boxes, dims);
  if (dims > 0) std::ranges::sort(boxes, {}, [dim](const Box* box) { return box->offset[dim]; });
  Boxes open;  // those that reach as far as the next one along `dim`
  for (const Box* const box : boxes) {
    if (dims > 0) {
      std::erase_if(open, [&](const Box* each) { return end_of(*each, dim) <= box->offset[dim]; });
    }
    for (const Box* const other : open) {
      if (meet(*box, *other)) return intersect(*box, *other).offset;
    }
    open.push_back(box);
  }
  return std::nullopt;
}

// An element of the region that none of them holds; there is one, and no element is in two boxes.
std::vector<std::int64_t> find_free(const Boxes& boxes, Box region) {
  const auto has_free = [&](const Box& in) {
    std::int64_t held = 0;
    for (const Box* const box : boxes) held += intersect(*box, in).elems();
    return held < in.elems();
  };
  for (std::size_t d = 0; d < region.offset.size(); ++d) {
    while (region.length[d] > 1) {
      Box half = region;
      half.length[d] /= 2;
      if (!has_free(half)) {
        half.offset[d] += half.length[d];
        half.length[d] = region.length[d] - half.length[d];
      }
      region = std::move(half);
    }
  }
  return region.offset;
}

// Where an element of `inner` stands in `box`, by its coordinates in `inner`.
std::int64_t place_in(const Box& box, const Box& inner, std::span<const std::int64_t> at) {
  std::int64_t place = 0;
  for (std::size_t d = 0; d < at.size(); ++d) {
    place = place * box.length[d] + inner.offset[d] - box.offset[d] + at[d];
  }
  return place;
}

// The elements that two boxes share, as rows: as many of the last dimensions as are neighbours in
// both.
class Rows {
 public:
  Rows(const Box& from, const Box& to) : from_(from), to_(to), shared_(intersect(from, to)) {
    outer_ = shared_.length.size();
    bool whole = true;  // the dimensions behind are whole in both
    while (outer_ > 0 && whole) {
      --outer_;
      whole = shared_.length[outer_] == from.length[outer_] &&
              shared_.length[outer_] == to.length[outer_];
    }
    const std::span<const std::int64_t> length(shared_.length);
    count_ = product(length.first(outer_));
    elems_ = product(length.subspan(outer_));
    if (elems_ == 0) count_ = 0;
    at_.resize(length.size());
  }

  std::int64_t count() const { return count_; }

  SharedRun run(std::int64_t row) {
    for (std::size_t d = outer_; d > 0; --d) {
      at_[d - 1] = row % shared_.length[d - 1];
      row /= shared_.length[d - 1];
    }
    return {place_in(from_, shared_, at_), place_in(to_, shared_, at_), elems_};
  }

 private:
  const Box& from_;
  const Box& to_;
  Box shared_;
  std::size_t outer_ = 0;  // dimensions that count rows
  std::int64_t count_ = 0;
  std::int64_t elems_ = 0;  // of a row
  std::vector<std::int64_t> at_;
};

}  // namespace

std::int64_t Box::elems() const { return product(length); }

Box whole_box(std::span<const std::int64_t> shape) {
  return {std::vector<std::int64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
}

bool fits(const Box& box, std::span<const std::int64_t> shape) {
  if (box.offset.size() != shape.size() || box.length.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] < 0 || box.length[d] < 0 || box.length[d] > shape[d] ||
        box.offset[d] > shape[d] - box.length[d]) {
      return false;
    }
  }
  return true;
}

Box intersect(const Box& a, const Box& b) {
  Box both;
  for (std::size_t d = 0; d < a.offset.size(); ++d) {
    const ElemRange range = intersect({a.offset[d], a.offset[d] + a.length[d]},
                                      {b.offset[d], b.offset[d] + b.length[d]});
    both.offset.push_back(range.begin);
    both.length.push_back(range.size());
  }
  return both;
}

std::vector<ElemRange> left_by(std::span<const Box> others, const Box& box) {
  const ElemRange all{0, box.elems()};
  std::vector<ElemRange> had;
  for (const Box& other : others) {
    for_each_run(other, box, all,
                 [&had](const SharedRun& run) { had.push_back({run.to, run.to + run.elems}); });
  }
  std::ranges::sort(had, {}, &ElemRange::begin);
  std::vector<ElemRange> left;
  std::int64_t next = 0;
  for (const ElemRange& run : had) {
    if (run.begin > next) left.push_back({next, run.begin});
    next = std::max(next, run.end);
  }
  if (next < all.end) left.push_back({next, all.end});
  return left;
}

std::string to_text(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.offset.size(); ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(box.offset[d]) + ":" + std::to_string(box.offset[d] + box.length[d]);
  }
  return text + "]";
}

std::optional<Miscovered> find_miscovered(std::span<const Box> boxes,
                                          std::span<const std::int64_t> shape) {
  Boxes holding;
  for (const Box& box : boxes) {
    if (box.elems() > 0) holding.push_back(&box);
  }
  if (auto shared = find_shared(holding, shape.size())) {
    const Box at{*shared, std::vector<std::int64_t>(shape.size(), 1)};
    return Miscovered{std::move(*shared), std::ranges::count_if(holding, [&](const Box* box) {
                        return meet(*box, at);
                      })};
  }
  std::int64_t held = 0;
  for (const Box* const box : holding) held += box->elems();
  if (held == product(shape)) return std::nullopt;
  return Miscovered{find_free(holding, whole_box(shape)), 0};
}

void for_each_run(const Box& from, const Box& to, ElemRange wanted,
                  const std::function<void(const SharedRun&)>& use) {
  Rows rows(from, to);
  // Rows stand in the same order everywhere: the first one that reaches into the range.
  std::int64_t row = 0;
  for (std::int64_t end = rows.count(); row < end;) {
    const std::int64_t middle = row + (end - row) / 2;
    const SharedRun run = rows.run(middle);
    if (run.to + run.elems <= wanted.begin) {
      row = middle + 1;
    } else {
      end = middle;
    }
  }
  for (; row < rows.count(); ++row) {
    const SharedRun run = rows.run(row);
    const ElemRange in = intersect({run.to, run.to + run.elems}, wanted);
    if (in.size() == 0) return;
    use({run.from + in.begin - run.to, in.begin, in.size()});
  }
}

}  // namespace capstan::layout
