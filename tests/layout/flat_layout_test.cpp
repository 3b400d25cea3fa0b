#include "capstan/layout/flat_layout.h"

#include <array>
#include <random>

#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::layout {
namespace {

TEST(FlatLayout, ShardsCoverTheBufferOnceAndInOrder) {
  const std::array<std::int64_t, 3> numels = {5, 1, 7};
  for (const int world_size : {1, 2, 3, 4}) {
    const FlatLayout layout(numels, world_size, /*align_elems=*/4);
    std::int64_t next = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(layout.shard(rank).begin, next) << "world_size=" << world_size;
      next = layout.shard(rank).end;
    }
    EXPECT_EQ(next, layout.padded_elems());
    EXPECT_GE(next, layout.slots().back().end);
  }
}

TEST(FlatLayout, SlotsAndShardsAreAligned) {
  const std::array<std::int64_t, 4> numels = {1, 33, 2, 100};
  const FlatLayout layout(numels, 3, 32);
  for (const ElemRange& slot : layout.slots()) EXPECT_EQ(slot.begin % 32, 0);
  EXPECT_EQ(layout.shard_elems() % 32, 0);
}

TEST(FlatLayout, AParameterAloneIsCutIntoEqualParts) {
  const std::array<std::int64_t, 1> numels = {15};
  const FlatLayout layout(numels, 2, 32);
  EXPECT_EQ(layout.shard_elems(), 8);
  EXPECT_EQ(layout.pieces(0).front().in_slot, (ElemRange{0, 8}));
  EXPECT_EQ(layout.pieces(1).front().in_slot, (ElemRange{8, 15}));
}

TEST(FlatLayout, PiecesOfAllRanksAreEverySlotOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> numels(random() % 6);
    for (auto& numel : numels) numel = static_cast<std::int64_t>(random() % 40);
    const int world_size = 1 + static_cast<int>(random() % 9);
    const FlatLayout layout(numels, world_size, std::int64_t{1} << (random() % 4));
    std::vector<std::int64_t> covered(numels.size(), 0);
    for (int rank = 0; rank < world_size; ++rank) {
      for (const SlotPiece& piece : layout.pieces(rank)) {
        const auto slot = static_cast<std::size_t>(piece.slot);
        EXPECT_EQ(piece.in_slot.begin, covered[slot]);  // in order, no gap
        EXPECT_EQ(piece.in_slot.size(), piece.in_shard.size());
        EXPECT_EQ(layout.shard(rank).begin + piece.in_shard.begin,
                  layout.slots()[slot].begin + piece.in_slot.begin);
        covered[slot] = piece.in_slot.end;
      }
    }
    EXPECT_EQ(covered, numels);
  }
}

TEST(FlatLayout, RanksMayBeEmpty) {
  const std::array<std::int64_t, 1> numels = {1};
  const FlatLayout layout(numels, 4, 16);
  EXPECT_EQ(layout.pieces(0).size(), 1U);
  EXPECT_TRUE(layout.pieces(3).empty());
  EXPECT_EQ(FlatLayout({}, 3, 8).padded_elems(), 0);
}

TEST(FlatLayout, RefusesNonsense) {
  const std::array<std::int64_t, 1> negative = {-1};
  const std::array<std::int64_t, 1> one = {1};
  EXPECT_THROW(FlatLayout(negative, 1, 1), ConfigError);
  EXPECT_THROW(FlatLayout(one, 0, 1), ConfigError);
  EXPECT_THROW(FlatLayout(one, 1, 0), ConfigError);
}

}  // namespace
}  // namespace capstan::layout
