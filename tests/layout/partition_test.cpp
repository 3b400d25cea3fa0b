#include "capstan/layout/partition.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <gtest/gtest.h>

namespace capstan::layout {
namespace {

using Cuts = std::vector<std::int64_t>;

TEST(Partition, EvenPartsDifferByAtMostOneAndTheLargerComeFirst) {
  EXPECT_EQ(even_cuts(7, 3), (Cuts{0, 3, 5, 7}));
  EXPECT_EQ(even_cuts(2, 4), (Cuts{0, 1, 2, 2, 2}));
  EXPECT_EQ(even_cuts(0, 2), (Cuts{0, 0, 0}));
  for (int items = 0; items < 40; ++items) {
    for (int parts = 1; parts < 12; ++parts) {
      const Cuts cuts = even_cuts(items, parts);
      ASSERT_EQ(cuts.front(), 0);
      ASSERT_EQ(cuts.back(), items);
      for (std::size_t i = 1; i < cuts.size(); ++i) {
        const std::int64_t size = cuts[i] - cuts[i - 1];
        ASSERT_TRUE(size == items / parts || size == items / parts + 1);
        ASSERT_TRUE(i == 1 || size <= cuts[i - 1] - cuts[i - 2]);
      }
    }
  }
}

double heaviest(const std::vector<double>& weights, const Cuts& cuts) {
  double most = 0;
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    most = std::max(most,
                    std::accumulate(weights.begin() + cuts[i - 1], weights.begin() + cuts[i], 0.0));
  }
  return most;
}

// By trying every way to cut.
double lightest_heaviest(const std::vector<double>& weights, int parts) {
  const auto count = static_cast<std::int64_t>(weights.size());
  double best = 1e300;
  Cuts cuts = {0};
  const std::function<void(int)> cut = [&](int left) {
    if (left == 0) {
      cuts.push_back(count);
      best = std::min(best, heaviest(weights, cuts));
      cuts.pop_back();
      return;
    }
    for (std::int64_t at = cuts.back(); at <= count; ++at) {
      cuts.push_back(at);
      cut(left - 1);
      cuts.pop_back();
    }
  };
  cut(parts - 1);
  return best;
}

TEST(Partition, TheHeaviestOfBalancedPartsIsAsLightAsItCanBe) {
  EXPECT_EQ(balanced_cuts(std::vector<double>{1, 2, 3, 4, 5}, 2), (Cuts{0, 3, 5}));
  EXPECT_EQ(balanced_cuts(std::vector<double>{4, 1}, 3), (Cuts{0, 1, 2, 2}));
  std::uint32_t state = 7;
  for (int round = 0; round < 60; ++round) {
    std::vector<double> weights;
    for (int i = 0; i < 8; ++i) {
      state = state * 1664525U + 1013904223U;
      weights.push_back(state >> 28U);
    }
    for (int parts = 1; parts <= 4; ++parts) {
      const Cuts cuts = balanced_cuts(weights, parts);
      ASSERT_EQ(cuts.size(), static_cast<std::size_t>(parts) + 1);
      ASSERT_TRUE(std::is_sorted(cuts.begin(), cuts.end()));
      ASSERT_EQ(heaviest(weights, cuts), lightest_heaviest(weights, parts));
    }
  }
}

}  // namespace
}  // namespace capstan::layout
