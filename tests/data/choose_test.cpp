#include "capstan/data/choose.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include <gtest/gtest.h>

namespace capstan::data {
namespace {

std::vector<std::int64_t> choose(std::int64_t count, std::int64_t kept, std::uint64_t seed) {
  std::vector<std::int64_t> chosen(static_cast<std::size_t>(kept));
  choose_positions(count, seed, chosen);
  return chosen;
}

TEST(ChoosePositions, GivesDifferentPositionsInOrder) {
  for (const std::int64_t count : {1, 2, 7, 4096}) {
    for (std::int64_t kept = 0; kept <= count; kept += std::max<std::int64_t>(1, count / 5)) {
      const std::vector<std::int64_t> chosen = choose(count, kept, 3);
      EXPECT_EQ(std::ranges::adjacent_find(chosen, std::greater_equal{}), chosen.end());
      for (const std::int64_t each : chosen) EXPECT_TRUE(0 <= each && each < count);
    }
  }
}

TEST(ChoosePositions, TakesEachSetAsOftenAsAnyOther) {
  constexpr int kDraws = 10'000;
  std::map<std::vector<std::int64_t>, int> found;
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) ++found[choose(5, 2, seed)];
  ASSERT_EQ(found.size(), 10U);  // 5 over 2
  for (const auto& [chosen, times] : found) {
    EXPECT_NEAR(times, kDraws / 10.0, 5 * std::sqrt(kDraws * 0.1 * 0.9));
  }
}

TEST(ChoosePositions, DependsOnTheSeedAlone) {
  EXPECT_EQ(choose(100, 30, 5), choose(100, 30, 5));
  EXPECT_NE(choose(100, 30, 5), choose(100, 30, 6));
}

}  // namespace
}  // namespace capstan::data
