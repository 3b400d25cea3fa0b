// What a search tries next, when it stops, and what it answers, on spaces small enough to follow.
#include "capstan/tune/search.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::tune {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Axis stages(std::vector<int> which) {
  Axis axis{.name = "stage", .ordered = true};
  for (const int stage : which) {
    axis.settings.push_back({.label = "stage " + std::to_string(stage),
                             .edits = {{"zero_optimization.stage", json::Value(stage)}},
                             .memory = 3 - stage});
  }
  return axis;
}

Space space_of(std::vector<int> which, int micros) {
  Space space;
  space.axes.push_back(stages(which));
  space.stages = std::move(which);
  for (int i = 0; i < micros; ++i) space.micros.push_back({std::int64_t{1} << i, 1});
  return space;
}

Outcome fast(double throughput) {
  return {.end = End::measured, .latency = 1 / throughput, .throughput = throughput};
}

// Outcomes by description; what was tried, in order.
struct Script {
  std::map<std::string, Outcome> outcomes;
  std::vector<std::string> tried;

  Answer run(const Space& space, const Options& options, const Predict& predict = {}) {
    return search(
        space, options,
        [&](const Combination& candidate, int) {
          tried.push_back(describe(space, candidate));
          return outcomes.at(tried.back());
        },
        predict);
  }
};

std::string best_of(const Space& space, const Answer& answer) {
  return answer.best ? describe(space, answer.best->candidate) : "none";
}

TEST(Search, ClimbsTheMicroBatchWhileItPays) {
  Script script{.outcomes = {{"stage 0, micro-batch 1 x 1", fast(10)},
                             {"stage 0, micro-batch 2 x 1", fast(18)},
                             {"stage 0, micro-batch 4 x 1", fast(30)},
                             {"stage 0, micro-batch 8 x 1", fast(30.1)}}};
  const Space space = space_of({0}, 6);
  const Answer answer = script.run(space, {});
  EXPECT_EQ(best_of(space, answer), "stage 0, micro-batch 8 x 1");
  EXPECT_EQ(answer.trials.size(), 4U);  // a gain of less than a hundredth is the last one
}

TEST(Search, DescendsFromASizeThatDoesNotFit) {
  Script script{.outcomes = {{"stage 0, micro-batch 8 x 1", {.end = End::out_of_memory}},
                             {"stage 0, micro-batch 4 x 1", {.end = End::out_of_memory}},
                             {"stage 0, micro-batch 2 x 1", fast(5)},
                             {"stage 0, micro-batch 1 x 1", fast(3)}}};
  Space space = space_of({0}, 6);
  space.first_micro = 3;
  const Answer answer = script.run(space, {});
  EXPECT_EQ(best_of(space, answer), "stage 0, micro-batch 2 x 1");
  EXPECT_THAT(script.tried, Not(Contains("stage 0, micro-batch 16 x 1")));
}

TEST(Search, WhatNeedsMoreMemoryThanOneThatHadTooLittleIsSkipped) {
  const Space space = space_of({3, 2}, 3);
  Script script{.outcomes = {{"stage 3, micro-batch 1 x 1", fast(5)},
                             {"stage 3, micro-batch 2 x 1", fast(9)},
                             {"stage 3, micro-batch 4 x 1", {.end = End::out_of_memory}},
                             {"stage 2, micro-batch 1 x 1", fast(6)},
                             {"stage 2, micro-batch 2 x 1", fast(10)}}};
  const Answer answer = script.run(space, {.order = Order::grid, .early_stopping = 0});
  EXPECT_EQ(answer.skipped, 1);  // stage 2 with 4
  EXPECT_EQ(best_of(space, answer), "stage 2, micro-batch 2 x 1");
}

TEST(Search, AStageThatSavesMemoryMayHaveALargerMicroBatch) {
  const Space space = space_of({1, 3}, 4);
  Script script{.outcomes = {{"stage 1, micro-batch 1 x 1", fast(10)},
                             {"stage 1, micro-batch 2 x 1", fast(16)},
                             {"stage 1, micro-batch 4 x 1", {.end = End::out_of_memory}},
                             {"stage 3, micro-batch 2 x 1", fast(14)},
                             {"stage 3, micro-batch 4 x 1", fast(22)},
                             {"stage 3, micro-batch 8 x 1", fast(22)}}};
  const Answer answer = script.run(space, {});
  EXPECT_EQ(best_of(space, answer), "stage 3, micro-batch 4 x 1");
}

TEST(Search, AFailureAndAHangAreResults) {
  const Space space = space_of({0, 1, 2}, 2);
  Script script{.outcomes = {{"stage 0, micro-batch 1 x 1", {.end = End::failed, .why = "no"}},
                             {"stage 1, micro-batch 1 x 1", {.end = End::too_long}},
                             {"stage 2, micro-batch 1 x 1", fast(4)},
                             {"stage 2, micro-batch 2 x 1", fast(7)}}};
  const Answer answer = script.run(space, {});
  EXPECT_EQ(best_of(space, answer), "stage 2, micro-batch 2 x 1");
  // What took too long with 1 would with 2.
  EXPECT_THAT(script.tried, Not(Contains("stage 1, micro-batch 2 x 1")));
}

TEST(Search, AJobThatNeverWorksEndsItEarly) {
  const Space space = space_of({0, 1, 2, 3}, 8);
  int trials = 0;
  const Answer answer = search(space, {}, [&](const Combination&, int) {
    ++trials;
    return Outcome{.end = End::failed};
  });
  EXPECT_FALSE(answer.best.has_value());
  EXPECT_EQ(trials, 3);
  EXPECT_THAT(answer.ended, HasSubstr("3 trials have failed"));
}

TEST(Search, WhereNothingFitsTheMostFrugalSettingIsTriedAndThenWhatIsFaster) {
  Space space = space_of({0, 2}, 2);
  space.axes.push_back({.name = "recomputation",
                        .settings = {{.label = "off", .memory = 1}, {.label = "on", .memory = 0}},
                        .ordered = true,
                        .reach = Reach::when_needed});
  const auto measure = [](const Combination& candidate, int) {
    return candidate.choice[1] == 0 ? Outcome{.end = End::out_of_memory}
                                    : fast(candidate.choice[0] == 0 ? 9 : 7);
  };
  const Answer answer = search(space, {}, measure);
  EXPECT_EQ(best_of(space, answer), "stage 0, on, micro-batch 1 x 1");
  const Answer none =
      search(space, {}, [](const Combination&, int) { return Outcome{.end = End::out_of_memory}; });
  EXPECT_FALSE(none.best.has_value());
  EXPECT_THAT(none.ended, HasSubstr("not even the most frugal"));
}

TEST(Search, AnswersWithWhatItHasWhenItIsStopped) {
  const Space space = space_of({0}, 5);
  int trials = 0;
  const Answer answer = search(space, {}, [&](const Combination&, int) {
    return ++trials == 3 ? Outcome{.end = End::stopped} : fast(trials);
  });
  EXPECT_EQ(trials, 3);
  EXPECT_EQ(answer.trials.size(), 2U);
  EXPECT_EQ(best_of(space, answer), "stage 0, micro-batch 2 x 1");
  EXPECT_EQ(answer.ended, "it was stopped");
}

TEST(Search, LimitsHold) {
  const Space space = space_of({0, 1, 2, 3}, 6);
  int trials = 0;
  const auto slower = [&](const Combination&, int) { return fast(1.0 / ++trials); };
  EXPECT_EQ(search(space, {.order = Order::grid, .most_trials = 2}, slower).trials.size(), 2U);
  trials = 0;
  const Answer patient = search(space, {.order = Order::grid, .early_stopping = 4}, slower);
  EXPECT_EQ(patient.trials.size(), 5U);  // the best is the first
  trials = 0;
  const Answer all = search(space, {.order = Order::random, .early_stopping = 0}, slower);
  EXPECT_EQ(all.trials.size(), 24U);
}

TEST(Search, LatencyPrefersShortSteps) {
  const Space space = space_of({0}, 3);
  const auto measure = [](const Combination& candidate, int) {
    const double seconds = 1 + candidate.micro * 0.1;
    return Outcome{.end = End::measured, .latency = seconds, .throughput = 10.0 + candidate.micro};
  };
  EXPECT_EQ(best_of(space, search(space, {}, measure)), "stage 0, micro-batch 4 x 1");
  EXPECT_EQ(best_of(space, search(space, {.metric = Metric::latency}, measure)),
            "stage 0, micro-batch 1 x 1");
}

TEST(Search, StartsWhereAPredictionPointsAndBeginsWithTheMostPromisingChange) {
  const Space space = space_of({0, 1, 2}, 4);
  const Predict predict = [&](const Combination& candidate) {
    const double speed = candidate.choice[0] == 2 ? 3 : 1 + candidate.choice[0];
    return Prediction{
        .bytes = candidate.micro >= 2 ? 10 : 1, .limit_bytes = 5, .seconds = 1 / speed};
  };
  std::vector<std::string> tried;
  search(
      space, {},
      [&](const Combination& candidate, int) {
        tried.push_back(describe(space, candidate));
        return candidate.micro >= 2 ? Outcome{.end = End::out_of_memory} : fast(1);
      },
      predict);
  ASSERT_GE(tried.size(), 4U);
  EXPECT_EQ(tried[0], "stage 2, micro-batch 2 x 1");
  EXPECT_EQ(tried[1], "stage 2, micro-batch 4 x 1");  // predictions may be wrong
  EXPECT_THAT(tried, Contains("stage 1, micro-batch 2 x 1"));
}

TEST(Search, TellsWhatOneChangeWouldCost) {
  const Space space = space_of({0, 1}, 2);
  Script script{.outcomes = {{"stage 0, micro-batch 1 x 1", fast(10)},
                             {"stage 0, micro-batch 2 x 1", {.end = End::out_of_memory}},
                             {"stage 1, micro-batch 1 x 1", fast(5)},
                             {"stage 1, micro-batch 2 x 1", {.end = End::failed}}}};
  const Answer answer = script.run(space, {});
  EXPECT_THAT(reasons(space, answer, Metric::throughput),
              ElementsAre("with micro-batch 2 x 1 instead: does not fit",
                          "with stage 1 instead: 50 % as fast"));
}

}  // namespace
}  // namespace capstan::tune
