#include "capstan/layout/partition.h"

#include <algorithm>
#include <functional>
#include <limits>
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

std::vector<double> sums_of(const std::vector<double>& weights, const Cuts& cuts) {
  std::vector<double> sums;
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    sums.push_back(std::accumulate(weights.begin() + cuts[i - 1], weights.begin() + cuts[i], 0.0));
  }
  return sums;
}

double heaviest(const std::vector<double>& weights, const Cuts& cuts) {
  return std::ranges::max(sums_of(weights, cuts));
}

double lightest(const std::vector<double>& weights, const Cuts& cuts) {
  return std::ranges::min(sums_of(weights, cuts));
}

// Every way to cut into parts that are not empty.
void for_every_way(std::int64_t count, int parts, const std::function<void(const Cuts&)>& visit) {
  Cuts cuts = {0};
  const std::function<void(int)> cut = [&](int left) {
    if (left == 0) {
      cuts.push_back(count);
      visit(cuts);
      cuts.pop_back();
      return;
    }
    for (std::int64_t at = cuts.back() + 1; at + left <= count; ++at) {
      cuts.push_back(at);
      cut(left - 1);
      cuts.pop_back();
    }
  };
  cut(parts - 1);
}

std::vector<double> some_weights(std::uint32_t& state) {
  std::vector<double> weights;
  for (int i = 0; i < 8; ++i) {
    state = state * 1664525U + 1013904223U;
    weights.push_back(state >> 28U);
  }
  return weights;
}

TEST(Partition, TheHeaviestOfBalancedPartsIsAsLightAndThenTheLightestAsHeavyAsItCanBe) {
  EXPECT_EQ(balanced_cuts(std::vector<double>{1, 2, 3, 4, 5}, 2), (Cuts{0, 3, 5}));
  EXPECT_EQ(balanced_cuts(std::vector<double>{4, 1}, 3), (Cuts{0, 1, 2, 2}));
  std::uint32_t state = 7;
  for (int round = 0; round < 60; ++round) {
    const std::vector<double> weights = some_weights(state);
    for (int parts = 1; parts <= 4; ++parts) {
      const Cuts cuts = balanced_cuts(weights, parts);
      ASSERT_EQ(cuts.size(), static_cast<std::size_t>(parts) + 1);
      ASSERT_TRUE(std::is_sorted(cuts.begin(), cuts.end()));
      for_every_way(std::ssize(weights), parts, [&](const Cuts& other) {
        ASSERT_LE(heaviest(weights, cuts), heaviest(weights, other));
        if (heaviest(weights, cuts) == heaviest(weights, other)) {
          ASSERT_GE(lightest(weights, cuts), lightest(weights, other));
        }
      });
    }
  }
}

TEST(Partition, BalancedPartsAreThoseOfDeepspeed) {
  const auto cuts = [](std::vector<double> weights, int parts) {
    return balanced_cuts(weights, parts);
  };
  EXPECT_EQ(cuts({1, 1, 1, 1, 1, 1, 1, 1}, 4), (Cuts{0, 2, 4, 6, 8}));
  EXPECT_EQ(cuts({0, 1, 2, 3, 3, 3}, 4), (Cuts{0, 3, 4, 5, 6}));
  EXPECT_EQ(cuts({0, 1.1, 30, 3}, 3), (Cuts{0, 2, 3, 4}));
  EXPECT_EQ(cuts({1, 1, 1, 1, 0, 1}, 4), (Cuts{0, 2, 3, 5, 6}));
  EXPECT_EQ(cuts({0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0}, 4), (Cuts{0, 3, 5, 7, 11}));
  std::vector<double> transformer(27, 12596224);
  transformer[0] = transformer[26] = 52559872;
  transformer[25] = 0;
  EXPECT_EQ(cuts(transformer, 8), (Cuts{0, 1, 5, 9, 13, 17, 21, 26, 27}));
}

TEST(Partition, TheCheapestWayIsFoundAndForbiddenPartsAreAvoided) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::uint32_t state = 11;
  int impossible = 0;
  for (int round = 0; round < 60; ++round) {
    const std::vector<double> weights = some_weights(state);
    // Later parts are dearer and hold less.
    const auto cost = [&](int part, std::int64_t begin, std::int64_t end) {
      const double weight = std::accumulate(weights.begin() + begin, weights.begin() + end, 0.0);
      return weight > 40 - 8 * part ? kNever : weight * (part + 1);
    };
    const auto worst = [&](const Cuts& cuts) {
      double most = 0;
      for (int part = 0; part + 1 < std::ssize(cuts); ++part) {
        most = std::max(most, cost(part, cuts[part], cuts[part + 1]));
      }
      return most;
    };
    for (int parts = 1; parts <= 4; ++parts) {
      double least = kNever;
      for_every_way(8, parts, [&](const Cuts& way) { least = std::min(least, worst(way)); });
      const std::optional<Cuts> cuts = cheapest_cuts(8, parts, cost);
      ASSERT_EQ(cuts.has_value(), least < kNever);
      if (cuts) {
        ASSERT_EQ(worst(*cuts), least);
      }
      impossible += static_cast<int>(!cuts);
    }
  }
  EXPECT_GT(impossible, 10);
}

}  // namespace
}  // namespace capstan::layout
