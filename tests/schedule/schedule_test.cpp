#include "capstan/schedule/schedule.h"

#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::schedule {
namespace {

using testing::HasSubstr;

// The learning rates at t = first, first + 1, ..., against `expected`, which has five digits.
void expect_lrs(const Options& options, std::int64_t first, const std::vector<double>& expected,
                double base_lr = 1e-3) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int64_t t = first + static_cast<std::int64_t>(i);
    EXPECT_NEAR(rates_at(options, t, base_lr, 0).lr, expected[i], 1e-5 * std::fabs(expected[i]))
        << "t=" << t;
  }
}

TEST(WarmupLr, ClimbsByLogarithmOrLine) {
  WarmupLr warmup = {.max_lr = {1e-3}, .num_steps = 10};
  expect_lrs(warmup, -1,
             {0, 0, .00030103, .000477121, .00060206, .00069897, .000778151, .000845098, .00090309,
              .000954243, .001, .001, .001});
  warmup.type = WarmupType::linear;
  expect_lrs(warmup, -1,
             {0, 0, .0001, .0002, .0003, .0004, .0005, .0006, .0007, .0008, .0009, .001, .001});
}

TEST(WarmupLr, TakesTheGroupsOwnRateWithoutAMaximum) {
  expect_lrs(WarmupLr{.num_steps = 4}, 4, {0.5, 0.5}, /*base_lr=*/0.5);
}

TEST(WarmupLr, GivesEachGroupItsOwnValue) {
  const WarmupLr warmup = {.min_lr = {0.1, 0.2}, .max_lr = {1.0, 2.0}, .num_steps = 4};
  EXPECT_EQ(rates_at(warmup, -1, 0, 1).lr, 0.2);
  EXPECT_EQ(rates_at(warmup, 9, 0, 0).lr, 1.0);
  EXPECT_EQ(rates_at(warmup, 9, 0, 1).lr, 2.0);
}

TEST(WarmupLr, OfOneStepTakesTwo) {
  const WarmupLr one = {.max_lr = {1.0}, .num_steps = 1, .type = WarmupType::linear};
  const WarmupLr two = {.max_lr = {1.0}, .num_steps = 2, .type = WarmupType::linear};
  EXPECT_LT(rates_at(two, 1, 0, 0).lr, 1.0);
  for (int t = -1; t < 4; ++t) EXPECT_EQ(rates_at(one, t, 0, 0).lr, rates_at(two, t, 0, 0).lr);
}

TEST(WarmupLr, OfNoStepsIsNoWarmupInEverySchedule) {
  expect_lrs(WarmupLr{.max_lr = {0.5}, .num_steps = 0}, -1, {0.5, 0.5, 0.5});
  expect_lrs(WarmupDecayLr{.total_steps = 4, .warmup = {.max_lr = {0.5}, .num_steps = 0}}, -1,
             {0.5, 0.5, 0.375, 0.25, 0.125, 0.0, 0.0});
  expect_lrs(WarmupCosineLr{.total_steps = 2, .warmup_steps = 0, .cos_min_ratio = 0}, -1,
             {1e-3, 0.5e-3, 0.0, 0.0});
}

TEST(WarmupDecayLr, FallsInALineToTheMinimum) {
  const WarmupDecayLr decay = {
      .total_steps = 10, .warmup = {.max_lr = {1e-3}, .num_steps = 4, .type = WarmupType::linear}};
  expect_lrs(decay, -1,
             {0, 0, .00025, .0005, .00075, .001, .000833333, .000666667, .0005, .000333333,
              .000166667, 0, 0, 0});
}

TEST(WarmupCosineLr, FallsInHalfAWave) {
  WarmupCosineLr cosine = {.total_steps = 10, .warmup_steps = 4, .type = WarmupType::linear};
  expect_lrs(cosine, -1,
             {0, 0, .00025, .0005, .00075, .000933019, .000750025, .00050005, .000250075,
              .000067081, 1e-7, 1e-7, 1e-7, 1e-7});
  cosine.warmup_min_ratio = 0.5;
  expect_lrs(cosine, -1, {.0005, .0005, .000625});
}

TEST(LrRangeTest, GrowsContinuouslyOrInStairs) {
  LrRangeTest test = {.step_size = 4};
  expect_lrs(test, -1, {.001, .00125, .0015, .00175, .002, .00225, .0025, .00275, .003, .00325});
  test.staircase = true;
  expect_lrs(test, 0, {.001, .001, .001, .002, .002, .002, .002, .003, .003});
}

TEST(OneCycle, RisesAndFallsWithMomentumTheOtherWayRound) {
  const OneCycle cycle = {.cycle_min_lr = {.01}, .cycle_max_lr = {.1}, .first_steps = 4};
  expect_lrs(cycle, -1, {.01, .0325, .055, .0775, .1, .0775, .055, .0325, .01, .01});
  const std::vector<double> momentum = {.8, .875, .85, .825, .8, .825, .85, .875, .9, .9};
  for (std::size_t i = 0; i < momentum.size(); ++i) {
    EXPECT_NEAR(rates_at(cycle, static_cast<std::int64_t>(i) - 1, 0, 0).momentum.value(),
                momentum[i], 1e-12);
  }
}

TEST(OneCycle, DecaysAfterTheCycle) {
  OneCycle cycle = {.cycle_min_lr = {.01},
                    .cycle_max_lr = {.1},
                    .decay_lr_rate = .5,
                    .first_steps = 4,
                    .decay_steps = 2};
  expect_lrs(cycle, 8, {.008, .01 / 1.5, .01 / 1.75, .005});
  cycle.decay_mom_rate = 1.0;
  EXPECT_EQ(rates_at(cycle, 1000, 0, 0).momentum, 0.999);
}

TEST(OneCycle, ClimbsStairs) {
  const OneCycle cycle = {
      .cycle_min_lr = {.01}, .cycle_max_lr = {.1}, .first_steps = 4, .first_stairs = 2};
  expect_lrs(cycle, 0, {.01, .055, .055, .1, .055, .055, .01, .01});
}

TEST(OneCycle, WithoutAFallReachesThePeak) {
  const OneCycle cycle = {
      .cycle_min_lr = {.01}, .cycle_max_lr = {.1}, .first_steps = 2, .second_steps = 0};
  expect_lrs(cycle, -1, {.01, .055, .1, .01});
}

TEST(OneCycle, HasBoundsForEachGroup) {
  const OneCycle cycle = {.cycle_min_lr = {.001, .002},
                          .cycle_max_lr = {.01, .02},
                          .first_steps = 5,
                          .cycle_min_mom = {.8, .85},
                          .cycle_max_mom = {.9, .95}};
  check(cycle, 2);
  const auto expect = [&](std::int64_t t, int group, double lr, double momentum) {
    EXPECT_DOUBLE_EQ(rates_at(cycle, t, 0, group).lr, lr);
    EXPECT_DOUBLE_EQ(rates_at(cycle, t, 0, group).momentum.value(), momentum);
  };
  expect(-1, 1, .002, .85);
  expect(4, 0, .01, .8);
  expect(4, 1, .02, .85);
  expect(9, 1, .002, .95);
  EXPECT_THROW(check(cycle, 3), ConfigError);
}

TEST(OneCycle, LeavesMomentumAloneWhenTold) {
  const OneCycle cycle = {.cycle_min_lr = {.01}, .cycle_max_lr = {.1}, .cycle_momentum = false};
  EXPECT_EQ(rates_at(cycle, 5, 0, 0).momentum, std::nullopt);
}

TEST(Schedule, CountsAppliedSteps) {
  const WarmupLr warmup = {.max_lr = {1e-3}, .num_steps = 10, .type = WarmupType::linear};
  const Schedule schedule(warmup, {1e-3});
  EXPECT_EQ(schedule.at(0, 0).lr, 0.0);  // t = -1
  EXPECT_EQ(schedule.at(1, 0).lr, 0.0);  // t = 0
  EXPECT_DOUBLE_EQ(schedule.at(2, 0).lr, 1e-4);
}

TEST(Schedule, ContinuesAfterTheLastStepOfAnEarlierRun) {
  WarmupDecayLr decay = {.total_steps = 10, .warmup = {.max_lr = {1e-3}, .num_steps = 4}};
  const Schedule fresh(decay, {1e-3});
  decay.warmup.last_step = 5;
  const Schedule resumed(decay, {1e-3});
  EXPECT_EQ(resumed.at(0, 0), fresh.at(6, 0));
  EXPECT_EQ(resumed.at(3, 0), fresh.at(9, 0));
}

TEST(Schedule, IsTheGroupsOwnRateWhenConstant) {
  const Schedule schedule(Constant{}, {0.1, 0.2});
  EXPECT_EQ(schedule.at(0, 0).lr, 0.1);
  EXPECT_EQ(schedule.at(1000, 1).lr, 0.2);
  EXPECT_EQ(schedule.at(1000, 1).momentum, std::nullopt);
}

TEST(Schedule, CallsAUsersFunction) {
  const Schedule schedule([](std::int64_t applied, int group) {
    return Rates{.lr = 1.0 / static_cast<double>(applied + 1), .momentum = 0.1 * group};
  });
  EXPECT_EQ(schedule.at(3, 2), (Rates{.lr = 0.25, .momentum = 0.2}));
}

TEST(Check, ListsEverythingThatCannotWork) {
  check(WarmupLr{.num_steps = 0}, 3);
  try {
    check(WarmupDecayLr{.total_steps = 0,
                        .warmup = {.min_lr = {0.0, 0.0}, .max_lr = {-1.0}, .num_steps = -5}},
          3);
    FAIL() << "bad values were accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.info().what, HasSubstr("min_lr has 2 values"));
    EXPECT_THAT(error.info().what, HasSubstr("3 parameter groups"));
    EXPECT_THAT(error.info().what, HasSubstr("max_lr is -1"));
    EXPECT_THAT(error.info().what, HasSubstr("num_steps is -5"));
    EXPECT_THAT(error.info().what, HasSubstr("total_steps is 0"));
  }
  EXPECT_THROW(check(OneCycle{.first_steps = 0}, 1), ConfigError);
  EXPECT_THROW(check(OneCycle{.cycle_max_mom = {1.0}}, 1), ConfigError);
  EXPECT_THROW(check(LrRangeTest{.step_size = 0}, 1), ConfigError);
  EXPECT_THROW(check(WarmupCosineLr{}, 1), ConfigError);
}

TEST(Warning, NamesAWarmupLongerThanTheRun) {
  EXPECT_EQ(warning(WarmupLr{}), "");
  EXPECT_EQ(warning(WarmupCosineLr{.total_steps = 2000}), "");
  EXPECT_THAT(warning(WarmupDecayLr{.total_steps = 10}), HasSubstr("longer than its total of 10"));
}

}  // namespace
}  // namespace capstan::schedule
