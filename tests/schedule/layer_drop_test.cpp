#include "capstan/schedule/layer_drop.h"

#include <cmath>

#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::schedule {
namespace {

TEST(LayerDrop, KeepsAllAtFirstAndThetaInTheEnd) {
  const LayerDrop drop = {.theta = 0.5, .gamma = 0.01};
  EXPECT_EQ(theta_at(drop, 0), 1.0);
  EXPECT_DOUBLE_EQ(theta_at(drop, 100), 0.5 * std::exp(-1.0) + 0.5);
  EXPECT_DOUBLE_EQ(theta_at(drop, 1'000'000), 0.5);
  EXPECT_EQ(theta_of_step(drop, 1), 1.0);
  EXPECT_EQ(theta_of_step(drop, 2), 1.0);
  EXPECT_EQ(theta_of_step(drop, 3), theta_at(drop, 1));
}

TEST(LayerDrop, DropsNothingWhereThetaIsOne) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    EXPECT_EQ(branch_scales(4, 1.0, seed), std::vector<double>(4, 1.0));
  }
}

// Each of the forwards a seed of its own, as a run has it; the sums are within five deviations.
TEST(LayerDrop, KeepsEachLayerAsOftenAsItsPlaceSays) {
  constexpr int kLayers = 5;
  constexpr int kForwards = 20'000;
  std::vector<int> kept(kLayers);
  for (std::uint64_t seed = 0; seed < kForwards; ++seed) {
    const std::vector<double> scales = branch_scales(kLayers, 0.4, seed);
    for (int i = 0; i < kLayers; ++i) {
      const double chance = 1.0 - (i + 1.0) / kLayers * 0.6;
      if (scales[i] == 0) continue;
      ++kept[i];
      ASSERT_DOUBLE_EQ(scales[i], 1.0 / chance);  // so that the mean over forwards is the branch
    }
  }
  for (int i = 0; i < kLayers; ++i) {
    const double chance = 1.0 - (i + 1.0) / kLayers * 0.6;
    const double deviation = std::sqrt(kForwards * chance * (1 - chance));
    EXPECT_NEAR(kept[i], kForwards * chance, 5 * deviation) << i;
  }
}

TEST(LayerDrop, DrawsTheSameForTheSameForward) {
  EXPECT_EQ(branch_scales(12, 0.5, 7), branch_scales(12, 0.5, 7));
  EXPECT_NE(branch_scales(12, 0.5, 7), branch_scales(12, 0.5, 8));
}

TEST(LayerDrop, RefusesWhatCannotBeAShare) {
  EXPECT_THROW(check({.theta = 1.5}), ConfigError);
  EXPECT_THROW(check({.theta = -0.1}), ConfigError);
  EXPECT_THROW(check({.gamma = -1}), ConfigError);
  EXPECT_NO_THROW(check({.theta = 0, .gamma = 0}));
}

}  // namespace
}  // namespace capstan::schedule
