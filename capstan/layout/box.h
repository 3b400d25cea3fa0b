// Boxes of a tensor: what a rank has that owns some rows, or columns, of a weight. Pure arithmetic;
// elements are counted in row-major order, in the tensor as in each box.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "capstan/layout/flat_layout.h"

namespace capstan::layout {

// By dimension; both of the same size. Without dimensions it is one element.
struct Box {
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> length;

  std::int64_t elems() const;
  auto operator<=>(const Box&) const = default;
};

// The part of a tensor that somebody has; the shape is that of the whole tensor.
struct TensorSlice {
  std::vector<std::int64_t> shape;
  Box box;
  bool operator==(const TensorSlice&) const = default;
};

Box whole_box(std::span<const std::int64_t> shape);

// Whether the box has as many dimensions as the shape, and lies in it.
bool fits(const Box& box, std::span<const std::int64_t> shape);

// Has no elements where they do not meet. Requires the same number of dimensions.
Box intersect(const Box& a, const Box& b);

// The elements of `box` that none of `others` has, counted in `box`, in order. Requires the same
// number of dimensions.
std::vector<ElemRange> left_by(std::span<const Box> others, const Box& box);

// "[0:4, 8:16]", as Python writes slices.
std::string to_text(const Box& box);

// An element that not exactly one box holds.
struct Miscovered {
  std::vector<std::int64_t> at;
  std::int64_t boxes = 0;  // that hold it
};
// Nothing where every element of the shape lies in exactly one box. Requires that all fit. Compares
// boxes that meet along the dimension with most cuts: few in a grid, every two at the worst.
std::optional<Miscovered> find_miscovered(std::span<const Box> boxes,
                                          std::span<const std::int64_t> shape);

// Neighbours in two boxes at once.
struct SharedRun {
  std::int64_t from = 0;  // the first one, counted in the one box
  std::int64_t to = 0;    // and in the other
  std::int64_t elems = 0;
};
// What both boxes have among the elements `wanted` of `to`, in the longest runs, in order.
void for_each_run(const Box& from, const Box& to, ElemRange wanted,
                  const std::function<void(const SharedRun&)>& use);

}  // namespace capstan::layout
