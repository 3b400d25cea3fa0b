#include "capstan/tensor_parallel/cut.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::tensor_parallel {
namespace {

using layout::Box;
using layout::ElemRange;
using testing::HasSubstr;
using Shape = std::vector<std::int64_t>;

// Every element on exactly one rank, and each rank's tensor as large as its boxes.
void expect_each_element_once(const Shape& shape, const std::vector<WeightCut>& cuts) {
  std::vector<Box> boxes;
  for (const WeightCut& cut : cuts) {
    std::int64_t elems = 0;
    for (const Box& box : cut.boxes()) {
      EXPECT_TRUE(layout::fits(box, shape));
      EXPECT_GT(box.elems(), 0);
      elems += box.elems();
      boxes.push_back(box);
    }
    EXPECT_EQ(elems, layout::whole_box(cut.local_shape()).elems());
  }
  EXPECT_FALSE(layout::find_miscovered(boxes, shape).has_value());
}

TEST(Cut, GivesEveryElementToOneRank) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (std::int64_t length = ranks; length <= 24; ++length) {
      for (const std::size_t dim : {0U, 1U}) {
        Shape shape = {3, 3};
        shape[dim] = length;
        std::vector<WeightCut> cuts;
        for (int rank = 0; rank < ranks; ++rank) {
          cuts.push_back(cut_evenly(shape, dim, {rank, ranks}));
          EXPECT_EQ(cuts.back().is_whole(), ranks == 1);
          EXPECT_LE(cuts.front().length() - cuts.back().length(), 1);
        }
        expect_each_element_once(shape, cuts);
      }
    }
  }
}

TEST(Cut, TakesAPartOfEachOfSeveralFusedBlocks) {
  const std::int64_t blocks[] = {8, 4, 6};
  for (int ranks = 1; ranks <= 4; ++ranks) {
    std::vector<WeightCut> cuts;
    for (int rank = 0; rank < ranks; ++rank) {
      const WeightCut cut = cut_blocks({18, 2}, 0, blocks, {rank, ranks});
      std::int64_t begin = 0;
      std::int64_t length = 0;
      for (const std::int64_t block : blocks) {
        const ElemRange part = even_part(block, {rank, ranks});
        length += part.size();
        for (std::int64_t i = 0; i < block; ++i) {
          const bool mine = std::ranges::any_of(cut.ranges, [&](const ElemRange& range) {
            return range.begin <= begin + i && begin + i < range.end;
          });
          EXPECT_EQ(mine, part.begin <= i && i < part.end);
        }
        begin += block;
      }
      EXPECT_EQ(cut.length(), length);
      cuts.push_back(cut);
    }
    expect_each_element_once({18, 2}, cuts);
  }
}

TEST(Cut, JoinsBlocksThatTouch) {
  EXPECT_EQ(cut_blocks({18}, 0, std::vector<std::int64_t>{8, 4, 6}, {0, 1}).ranges,
            (std::vector<ElemRange>{{0, 18}}));
  EXPECT_EQ(cut_ranges({9}, 0, std::vector<ElemRange>{{0, 2}, {2, 3}, {4, 4}, {5, 9}}).ranges,
            (std::vector<ElemRange>{{0, 3}, {5, 9}}));
}

TEST(Cut, KeepsTheFirstRows) {
  EXPECT_EQ(first_rows(cut_evenly({8, 3}, 0, {1, 2}), 6), (WeightCut{{6, 3}, 0, {{4, 6}}}));
  EXPECT_EQ(first_rows(cut_evenly({8, 3}, 0, {1, 2}), 4), (WeightCut{{4, 3}, 0, {}}));
  EXPECT_EQ(first_rows(cut_evenly({8, 4}, 1, {1, 2}), 6), (WeightCut{{6, 4}, 1, {{2, 4}}}));
}

TEST(Cut, RefusesMoreRanksThanParts) {
  try {
    even_part(3, {0, 4});
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("3 cannot be cut into 4 parts"), HasSubstr("fewer tensor ranks")));
  }
  const std::int64_t blocks[] = {4, 4};
  EXPECT_THROW(cut_blocks({9}, 0, blocks, {0, 1}), InternalError);
}

TEST(VocabCut, CountsTheUsedRowsOfEachRank) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const std::int64_t used : {1, 100, 129, 383, 384}) {
      std::int64_t sum = 0;
      std::int64_t end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const VocabCut cut = cut_vocabulary(used, 384, {rank, ranks});
        EXPECT_EQ(cut.rows.begin, end);
        end = cut.rows.end;
        for (std::int64_t row = 0; row < cut.rows.size(); ++row) {
          EXPECT_EQ(row < cut.used_rows(), cut.rows.begin + row < used);
        }
        sum += cut.used_rows();
      }
      EXPECT_EQ(end, 384);
      EXPECT_EQ(sum, used);
    }
  }
}

}  // namespace
}  // namespace capstan::tensor_parallel
