#include "capstan/checkpoint/deepspeed/flat_part.h"

#include <gtest/gtest.h>

namespace capstan::checkpoint {
namespace {

using Pieces = std::vector<FlatPiece>;

TEST(FlatPart, BelowStage3EverythingIsCutIntoEqualPartsOfAnEvenLength) {
  const std::vector<std::int64_t> sizes = {5, 0, 4};
  EXPECT_EQ(flat_part(sizes, 1, 0, 2), (Pieces{{0, 0, 5}, {2, 0, 1}}));
  EXPECT_EQ(flat_part(sizes, 2, 1, 2), (Pieces{{2, 1, 3}, {-1, 0, 3}}));
  EXPECT_EQ(flat_part(sizes, 2, 2, 3), (Pieces{{2, 3, 1}, {-1, 0, 3}}));
}

TEST(FlatPart, AtStage3EachTensorIsCutByItself) {
  const std::vector<std::int64_t> sizes = {5, 4};
  EXPECT_EQ(flat_part(sizes, 3, 0, 2), (Pieces{{0, 0, 3}, {1, 0, 2}}));
  EXPECT_EQ(flat_part(sizes, 3, 1, 2), (Pieces{{0, 3, 2}, {-1, 0, 1}, {1, 2, 2}}));
  EXPECT_EQ(flat_part(sizes, 3, 3, 4), (Pieces{{-1, 0, 2}, {1, 3, 1}}));
}

TEST(FlatPart, TheRanksTogetherHaveEveryElementOnceAndPartsOfOneLength) {
  const std::vector<std::int64_t> sizes = {7, 1, 12, 3};
  for (const int stage : {1, 3}) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      std::vector<std::vector<int>> seen;
      for (const std::int64_t size : sizes) seen.emplace_back(size, 0);
      std::int64_t length = -1;
      for (int rank = 0; rank < ranks; ++rank) {
        std::int64_t mine = 0;
        for (const FlatPiece& piece : flat_part(sizes, stage, rank, ranks)) {
          mine += piece.elems;
          if (piece.tensor < 0) continue;
          auto& tensor = seen[static_cast<std::size_t>(piece.tensor)];
          for (std::int64_t i = 0; i < piece.elems; ++i) {
            ++tensor.at(static_cast<std::size_t>(piece.begin + i));
          }
        }
        ASSERT_TRUE(length < 0 || mine == length) << stage << " " << ranks;
        length = mine;
      }
      for (std::size_t i = 0; i < seen.size(); ++i) {
        ASSERT_EQ(seen[i], std::vector<int>(seen[i].size(), 1)) << stage << " " << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace capstan::checkpoint
