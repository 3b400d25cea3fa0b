#include "capstan/layout/box.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace capstan::layout {
namespace {

using Shape = std::vector<std::int64_t>;

int draw(std::mt19937& random, int from, int to) {
  return static_cast<int>(random() % static_cast<unsigned>(to - from + 1)) + from;
}

Shape draw_shape(std::mt19937& random) {
  Shape shape(static_cast<std::size_t>(draw(random, 0, 4)));
  for (std::int64_t& dim : shape) dim = draw(random, 1, 6);
  return shape;
}

// Cuts anywhere, one box after another, so that cuts of one do not go through the others.
std::vector<Box> cut(const Shape& shape, int cuts, std::mt19937& random) {
  std::vector<Box> boxes = {whole_box(shape)};
  for (int i = 0; i < cuts && !shape.empty(); ++i) {
    Box& box = boxes[random() % boxes.size()];
    const std::size_t dim = random() % shape.size();
    if (box.length[dim] < 2) continue;
    const int keep = draw(random, 1, static_cast<int>(box.length[dim]) - 1);
    Box rest = box;
    rest.offset[dim] += keep;
    rest.length[dim] -= keep;
    box.length[dim] = keep;
    boxes.push_back(rest);
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  return boxes;
}

// The slow way: every element by its coordinates, in row-major order.
std::vector<Shape> elements(const Box& box) {
  std::vector<Shape> all = {{}};
  for (std::size_t d = 0; d < box.offset.size(); ++d) {
    std::vector<Shape> longer;
    for (const Shape& each : all) {
      for (std::int64_t i = 0; i < box.length[d]; ++i) {
        longer.push_back(each);
        longer.back().push_back(box.offset[d] + i);
      }
    }
    all = std::move(longer);
  }
  return all;
}

TEST(Box, WhatOthersLeaveOfOneIsWhatNoneOfThemHas) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    const Shape shape = draw_shape(random);
    const auto any_box = [&] {
      Box box = whole_box(shape);
      for (std::size_t d = 0; d < shape.size(); ++d) {
        box.offset[d] = draw(random, 0, static_cast<int>(shape[d]));
        box.length[d] = draw(random, 0, static_cast<int>(shape[d] - box.offset[d]));
      }
      return box;
    };
    const Box box = any_box();
    std::vector<Box> others(static_cast<std::size_t>(draw(random, 0, 3)));
    std::set<Shape> had;
    for (Box& other : others) {
      other = any_box();
      for (const Shape& at : elements(other)) had.insert(at);
    }
    std::vector<std::int64_t> expected;
    std::int64_t place = 0;
    for (const Shape& at : elements(box)) {
      if (!had.contains(at)) expected.push_back(place);
      ++place;
    }
    std::vector<std::int64_t> left;
    for (const ElemRange& range : left_by(others, box)) {
      EXPECT_LT(left.empty() ? -1 : left.back() + 1, range.begin + (left.empty() ? 1 : 0));
      for (std::int64_t at = range.begin; at < range.end; ++at) left.push_back(at);
    }
    EXPECT_EQ(left, expected);
  }
}

std::map<Shape, int> counts(const std::vector<Box>& boxes) {
  std::map<Shape, int> counts;
  for (const Box& box : boxes) {
    for (const Shape& each : elements(box)) ++counts[each];
  }
  return counts;
}

TEST(Box, EveryElementIsCoveredOnceOrNamed) {
  std::mt19937 random(1);
  int wrong = 0;
  for (int round = 0; round < 3000; ++round) {
    const Shape shape = draw_shape(random);
    std::vector<Box> boxes = cut(shape, draw(random, 0, 12), random);
    EXPECT_FALSE(find_miscovered(boxes, shape).has_value());
    // One is left out, doubled, or moved.
    Box& box = boxes[random() % boxes.size()];
    if (const int what = draw(random, 0, 2); what == 0) {
      std::swap(box, boxes.back());
      boxes.pop_back();
    } else if (what == 1) {
      boxes.push_back(Box(box));
    } else {
      for (std::size_t d = 0; d < shape.size(); ++d) {
        box.offset[d] = draw(random, 0, static_cast<int>(shape[d] - box.length[d]));
      }
    }
    const auto found = find_miscovered(boxes, shape);
    const std::map<Shape, int> slow = counts(boxes);
    const bool right = slow.size() == elements(whole_box(shape)).size() &&
                       std::ranges::all_of(slow, [](const auto& each) { return each.second == 1; });
    ASSERT_EQ(found.has_value(), !right);
    if (!found) continue;
    ++wrong;
    const auto at = slow.find(found->at);
    ASSERT_EQ(found->boxes, at == slow.end() ? 0 : at->second);
    ASSERT_NE(found->boxes, 1);
  }
  EXPECT_GT(wrong, 2000);
}

TEST(Box, ATensorWithoutElementsNeedsNone) {
  EXPECT_FALSE(find_miscovered({}, Shape{0, 3}).has_value());
  EXPECT_TRUE(find_miscovered({}, Shape{}).has_value()) << "a scalar has one";
  EXPECT_FALSE(find_miscovered(std::vector<Box>{{}}, Shape{}).has_value());
}

// As many as a mesh of thousands has; and boxes of which no two share a cut.
TEST(Box, TenThousandAreChecked) {
  std::vector<Box> grid;
  for (std::int64_t i = 0; i < 100; ++i) {
    for (std::int64_t j = 0; j < 100; ++j) grid.push_back({{i * 80, j * 40}, {80, 40}});
  }
  EXPECT_FALSE(find_miscovered(grid, Shape{8000, 4000}).has_value());
  grid[5050].length[1] = 39;
  const auto found = find_miscovered(grid, Shape{8000, 4000});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->at, (Shape{4000, 2039}));
  EXPECT_EQ(found->boxes, 0);
  std::mt19937 random(2);
  const Shape shape = {1 << 14, 1 << 13, 16};
  std::vector<Box> boxes = cut(shape, 10'000, random);
  EXPECT_FALSE(find_miscovered(boxes, shape).has_value());
  boxes.pop_back();
  EXPECT_EQ(find_miscovered(boxes, shape)->boxes, 0);
  std::vector<Box> columns;  // each meets all others along the rows
  for (std::int64_t i = 0; i < 10'000; ++i) columns.push_back({{0, 7 * i}, {1 << 20, 7}});
  EXPECT_FALSE(find_miscovered(columns, Shape{1 << 20, 70'000}).has_value());
}

// Every dimension is cut somewhere: the cells between all cuts are more than can be counted.
TEST(Box, ManyDimensionsAreChecked) {
  constexpr std::size_t kDims = 40;
  Shape shape(kDims + 1, 2);
  shape.back() = kDims;
  std::vector<Box> boxes;
  for (std::size_t d = 0; d < kDims; ++d) {
    Box box = whole_box(shape);
    box.offset.back() = static_cast<std::int64_t>(d);
    box.length.back() = 1;
    box.length[d] = 1;
    boxes.push_back(box);
    box.offset[d] = 1;
    boxes.push_back(box);
  }
  EXPECT_FALSE(find_miscovered(boxes, shape).has_value());
  boxes.pop_back();
  EXPECT_EQ(find_miscovered(boxes, shape)->at.back(), kDims - 1);
}

TEST(Box, RunsAreWhatTwoBoxesShareInTheOrderOfBoth) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    const Shape shape = draw_shape(random);
    const Box from = cut(shape, 3, random).front();
    const Box to = cut(shape, 3, random).front();
    const int begin = draw(random, 0, static_cast<int>(to.elems()));
    const ElemRange wanted{begin, draw(random, begin, static_cast<int>(to.elems()))};
    const std::vector<Shape> in_from = elements(from);
    const std::vector<Shape> in_to = elements(to);
    std::vector<Shape> seen;
    for_each_run(from, to, wanted, [&](const SharedRun& run) {
      ASSERT_GT(run.elems, 0);
      for (std::int64_t i = 0; i < run.elems; ++i) {
        ASSERT_LT(run.to + i, wanted.end);
        ASSERT_EQ(in_from.at(static_cast<std::size_t>(run.from + i)),
                  in_to.at(static_cast<std::size_t>(run.to + i)));
        seen.push_back(in_to[static_cast<std::size_t>(run.to + i)]);
      }
    });
    std::vector<Shape> expected;
    for (std::int64_t i = wanted.begin; i < wanted.end; ++i) {
      const Shape& each = in_to[static_cast<std::size_t>(i)];
      if (std::ranges::find(in_from, each) != in_from.end()) expected.push_back(each);
    }
    ASSERT_EQ(seen, expected);
  }
}

TEST(Box, RunsAreAsLongAsTheyCanBe) {
  const auto runs = [](const Box& from, const Box& to) {
    std::vector<std::int64_t> lengths;
    for_each_run(from, to, {0, to.elems()},
                 [&](const SharedRun& run) { lengths.push_back(run.elems); });
    return lengths;
  };
  const Box whole = whole_box(Shape{4, 3, 5});
  EXPECT_EQ(runs(whole, whole), (Shape{60}));
  EXPECT_EQ(runs(whole, {{1, 0, 0}, {2, 3, 5}}), (Shape{30}));      // rows
  EXPECT_EQ(runs(whole, {{1, 1, 0}, {2, 2, 5}}), (Shape{10, 10}));  // rows of rows
  EXPECT_EQ(runs({{0, 0, 0}, {1, 2, 2}}, whole), (Shape{2, 2}));    // columns
  EXPECT_EQ(runs({{0, 0, 0}, {4, 3, 1}}, {{0, 0, 1}, {4, 3, 1}}), Shape{});
}

TEST(Box, FitsWhereItLiesInTheShape) {
  EXPECT_TRUE(fits({{0, 2}, {4, 3}}, Shape{4, 5}));
  EXPECT_FALSE(fits({{0, 3}, {4, 3}}, Shape{4, 5}));
  EXPECT_FALSE(fits({{-1, 0}, {1, 1}}, Shape{4, 5}));
  EXPECT_FALSE(fits({{0, 0}, {1, -1}}, Shape{4, 5}));
  EXPECT_FALSE(fits({{0}, {1}}, Shape{4, 5}));
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_FALSE(fits({{most}, {most}}, Shape{most}));
  EXPECT_EQ(to_text({{0, 8}, {4, 8}}), "[0:4, 8:16]");
}

}  // namespace
}  // namespace capstan::layout
