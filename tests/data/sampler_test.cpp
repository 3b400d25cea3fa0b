#include "capstan/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/data/permutation.h"

namespace capstan::data {
namespace {

using Samples = std::vector<std::int64_t>;

TEST(Permutation, ReachesEveryPlaceOnce) {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 4097}) {
    const Permutation permutation(count, 42);
    std::set<std::int64_t> places;
    for (std::int64_t i = 0; i < count; ++i) places.insert(permutation(i));
    EXPECT_EQ(static_cast<std::int64_t>(places.size()), count);
    EXPECT_EQ(*places.begin(), 0);
    EXPECT_EQ(*places.rbegin(), count - 1);
  }
}

TEST(Permutation, MixesWell) {
  // Neighbours land far apart: their mean distance in a random order of n is n / 3.
  const std::int64_t count = 10000;
  const Permutation permutation(count, 7);
  double distance = 0;
  for (std::int64_t i = 1; i < count; ++i) {
    distance += std::abs(static_cast<double>(permutation(i) - permutation(i - 1)));
  }
  EXPECT_NEAR(distance / static_cast<double>(count - 1), count / 3.0, count / 3.0 * 0.05);
}

struct Draw {
  int world_size = 1;
  std::int64_t samples = 0;
  std::int64_t each = 1;  // per rank and batch
  int steps = 1;
  std::int64_t start = 0;
};

// What all ranks take together.
Samples taken(const Draw& draw, const Options& options = {}) {
  std::vector<Sampler> ranks;
  for (int rank = 0; rank < draw.world_size; ++rank) {
    ranks.emplace_back(draw.samples, RankOf{rank, draw.world_size}, options);
    ranks.back().seek(draw.start);
  }
  Samples all;
  for (int step = 0; step < draw.steps; ++step) {
    for (Sampler& rank : ranks) {
      const Samples mine = rank.next(draw.each);
      all.insert(all.end(), mine.begin(), mine.end());
    }
  }
  return all;
}

TEST(Sampler, GivesEachSampleOncePerEpoch) {
  for (const int world_size : {1, 2, 3, 4}) {
    Samples epoch = taken({world_size, 24, 2, 24 / (2 * world_size)});
    std::sort(epoch.begin(), epoch.end());
    Samples expected(24);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(epoch, expected) << "world_size=" << world_size;
  }
}

TEST(Sampler, OrdersSamplesAlikeForEveryWorldSize) {
  const Samples one = taken({1, 100, 6, 8});
  EXPECT_EQ(taken({2, 100, 3, 8}), one);
  EXPECT_EQ(taken({3, 100, 2, 8}), one);
}

TEST(Sampler, ShufflesBySeedAndEpoch) {
  const Samples first = taken({1, 50, 50, 2}, {.seed = 1});
  const Samples second = taken({1, 50, 50, 2}, {.seed = 2});
  EXPECT_NE(first, second);
  EXPECT_EQ(first, taken({1, 50, 50, 2}, {.seed = 1}));
  EXPECT_NE(Samples(first.begin(), first.begin() + 50), Samples(first.begin() + 50, first.end()));
  EXPECT_NE(Samples(first.begin() + 50, first.end()), Samples(second.begin(), second.begin() + 50));
}

TEST(Sampler, GoesOnFromAPositionOnOtherRanks) {
  const Samples whole = taken({1, 70, 6, 20});
  const Samples before = taken({2, 70, 3, 11});
  const Samples after = taken({3, 70, 2, 9, 66});
  Samples joined = before;
  joined.insert(joined.end(), after.begin(), after.end());
  EXPECT_EQ(joined, whole);
}

TEST(Sampler, FillsTheLastBatchFromTheNextEpochOrLeavesItOut) {
  const Samples filled = taken({1, 10, 4, 5});
  EXPECT_EQ(filled.size(), 20U);
  EXPECT_EQ(std::set<std::int64_t>(filled.begin(), filled.begin() + 10).size(), 10U);
  Sampler dropping(10, {}, {.drop_last = true});
  dropping.next(4);
  dropping.next(4);
  EXPECT_EQ(dropping.epoch(), 0);
  dropping.next(4);
  EXPECT_EQ(dropping.position(), 14);
  EXPECT_EQ(dropping.epoch(), 1);
}

TEST(Sampler, RefusesWhatCannotBeSampled) {
  EXPECT_THROW(Sampler(0, {}, {}), ConfigError);
  Sampler small(3, {}, {.drop_last = true});
  EXPECT_THROW(small.next(4), ConfigError);
}

TEST(Sampler, KeepsTheOrderOfTheDataWhenAskedTo) {
  Sampler sampler(5, {.rank = 1, .world_size = 2}, {.shuffle = false});
  EXPECT_EQ(sampler.next(2), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(sampler.next(2), (std::vector<std::int64_t>{1, 2}));
}

TEST(Sampler, APlaceBeforeTheFirstSampleIsRefused) {
  Sampler sampler(10, {}, {});
  EXPECT_THROW(sampler.seek(-5), ConfigError);
  EXPECT_EQ(sampler.position(), 0);
}

}  // namespace
}  // namespace capstan::data
