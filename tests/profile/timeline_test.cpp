#include "capstan/profile/timeline.h"

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/profile/clock_offset.h"
#include "capstan/profile/unit_times.h"

namespace capstan::profile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TimelineSpan span(Lane lane, const char* name, double begin, double end, bool computes = true) {
  return {.lane = lane, .name = name, .begin_us = begin, .end_us = end, .computes = computes};
}

RankTimeline one_step(std::vector<TimelineSpan> spans) {
  return {.spans = std::move(spans), .steps = {{1, 0, 100}}};
}

double exposed(const StepShares& shares, Lane lane) {
  return shares.exposed_us[static_cast<std::size_t>(lane)];
}

TEST(Timeline, WhatRunsBesideComputingIsNotExposed) {
  const StepShares shares = shares_of(one_step({span(Lane::compute, "forward", 0, 60),
                                                span(Lane::gather, "all_gather", 20, 60, false),
                                                span(Lane::update, "update", 50, 100, false)}));
  EXPECT_EQ(shares.compute_us, 60);
  EXPECT_EQ(exposed(shares, Lane::gather), 0);
  EXPECT_EQ(exposed(shares, Lane::update), 40);
  EXPECT_EQ(shares.other_us, 0);
  EXPECT_EQ(shares.step_us, 100);
}

TEST(Timeline, AWaitInsideOfAComputingUnitIsExposedByItsCause) {
  const StepShares shares = shares_of(
      one_step({span(Lane::compute, "forward", 0, 100), span(Lane::wait, "all_gather", 10, 13),
                span(Lane::wait, "update", 50, 62)}));
  EXPECT_EQ(shares.compute_us, 85);
  EXPECT_EQ(exposed(shares, Lane::gather), 3);
  EXPECT_EQ(exposed(shares, Lane::update), 12);
  EXPECT_EQ(describe(shares),
            "exposed: update 12.0 %, gather 3.0 %; computing 85.0 %, other 0.0 %");
}

TEST(Timeline, AThreadThatOnlyMovesDataMayWait) {
  const StepShares shares = shares_of(
      one_step({span(Lane::compute, "forward", 0, 100), span(Lane::wait, "disk", 0, 90, false)}));
  EXPECT_EQ(shares.compute_us, 100);
  EXPECT_EQ(describe(shares), "exposed: nothing; computing 100.0 %, other 0.0 %");
}

TEST(Timeline, EachInstantCountsOnceAndOnlyInsideOfSteps) {
  RankTimeline timeline = one_step({span(Lane::reduce, "reduce_scatter", -50, 30, false),
                                    span(Lane::gather, "all_gather", 10, 50, false),
                                    span(Lane::disk, "write", 40, 500, false)});
  timeline.steps.push_back({2, 200, 300});
  const StepShares shares = shares_of(timeline);
  EXPECT_EQ(exposed(shares, Lane::reduce), 30);
  EXPECT_EQ(exposed(shares, Lane::gather), 20);
  EXPECT_EQ(exposed(shares, Lane::disk), 50 + 100);
  EXPECT_EQ(shares.step_us, 200);
}

TEST(Timeline, BackwardBetweenUnitsIsComputingAndTheRestOfAStepIsOther) {
  const StepShares shares = shares_of(
      one_step({span(Lane::phase, "forward", 0, 40), span(Lane::compute, "forward", 10, 40),
                span(Lane::phase, "backward", 40, 90), span(Lane::phase, "step", 90, 100)}));
  EXPECT_EQ(shares.compute_us, 80);
  EXPECT_EQ(shares.other_us, 20);
}

TEST(Timeline, NoStepHasNoShares) {
  EXPECT_EQ(describe(shares_of({})), "no step ended");
  EXPECT_THAT(advice(shares_of({}), {}), IsEmpty());
}

StepShares exposing(Lane lane, double share) {
  StepShares shares{.step_us = 100};
  shares.exposed_us[static_cast<std::size_t>(lane)] = 100 * share;
  return shares;
}

TEST(Timeline, AdviceNamesTheSettingThatWouldHelpHere) {
  EXPECT_THAT(advice(exposing(Lane::gather, 0.1), {.stage = 3}),
              ElementsAre(HasSubstr("shard.prefetch_bytes")));
  EXPECT_THAT(advice(exposing(Lane::gather, 0.1), {.stage = 1}),
              ElementsAre(HasSubstr("batch.accumulation_steps")));
  EXPECT_THAT(advice(exposing(Lane::reduce, 0.1), {.overlaps_reduction = false}),
              ElementsAre(HasSubstr("shard.overlap_comm")));
  EXPECT_THAT(advice(exposing(Lane::exchange, 0.1), {.pipe = 4}),
              ElementsAre(HasSubstr("micro-batches fill the pipeline")));
  TracedSettings offloaded{.stage = 2, .updates_on_host = true};
  EXPECT_THAT(advice(exposing(Lane::update, 0.1), offloaded),
              ElementsAre(HasSubstr("store.optimizer.late_updates")));
  offloaded.late_updates = true;
  EXPECT_THAT(advice(exposing(Lane::update, 0.1), offloaded),
              ElementsAre(HasSubstr("store.optimizer.early_updates")));
  offloaded.early_updates = true;
  EXPECT_THAT(advice(exposing(Lane::update, 0.1), offloaded),
              ElementsAre(HasSubstr("store.optimizer.ratio")));
  EXPECT_THAT(advice(exposing(Lane::disk, 0.1), {}), ElementsAre(HasSubstr("buffer_count")));
  const TracedSettings named{.stage = 3, .names = {{{"shard.prefetch_bytes", "their_key"}}}};
  EXPECT_THAT(advice(exposing(Lane::gather, 0.1), named), ElementsAre(HasSubstr("their_key")));
  EXPECT_THAT(advice(exposing(Lane::gather, 0.01), {.stage = 3}), IsEmpty());
}

Clock::time_point at(int us) { return Clock::time_point(std::chrono::microseconds(us)); }

Record record(const char* name, Kind kind, int begin, int end, const void* owner = nullptr) {
  return {.name = name,
          .unit = "h.0",
          .kind = kind,
          .bytes = 7,
          .owner = owner,
          .thread = std::this_thread::get_id(),
          .device = {at(begin), std::chrono::microseconds(end - begin)}};
}

TEST(Timeline, RecordsBecomeLanesAndStepsOfThisEngine) {
  const int us = 0;
  const int others = 0;
  Record elsewhere = record("update", Kind::wait, 21, 22);
  elsewhere.thread = {};
  const RankTimeline timeline = to_timeline(
      {record("forward", Kind::phase, 10, 20, &us), record("forward", Kind::compute, 12, 18),
       record("sum in rank order", Kind::compute, 25, 26), elsewhere,
       record("step", Kind::phase, 0, 90, &others), record("backward", Kind::phase, 20, 30, &us),
       record("step", Kind::phase, 30, 40, &us), record("forward", Kind::phase, 40, 50, &us),
       record("step", Kind::phase, 50, 60, &us)},
      3, 6, &us);
  EXPECT_EQ(timeline.rank, 3);
  EXPECT_THAT(timeline.steps, ElementsAre(StepWindow{7, 10, 40}, StepWindow{8, 40, 60}));
  ASSERT_EQ(timeline.spans.size(), 8U);
  EXPECT_EQ(timeline.spans[1].lane, Lane::compute);
  EXPECT_EQ(timeline.spans[1].unit, "h.0");
  EXPECT_EQ(timeline.spans[1].bytes, 7);
  EXPECT_EQ(timeline.spans[3].lane, Lane::wait);
  EXPECT_FALSE(timeline.spans[3].computes);
  EXPECT_EQ(timeline.spans[4].lane, Lane::reduce);
  EXPECT_TRUE(timeline.spans[4].computes);
}

TEST(Timeline, EveryKindHasALaneAndEveryWaitACause) {
  EXPECT_EQ(lane_of(Kind::io, "read"), Lane::disk);
  EXPECT_EQ(lane_of(Kind::exchange, "send"), Lane::exchange);
  EXPECT_EQ(lane_of(Kind::copy, "to host"), Lane::copy);
  EXPECT_EQ(cause_of("gradient norm"), Lane::reduce);
  EXPECT_EQ(cause_of("recv"), Lane::exchange);
  EXPECT_EQ(cause_of("disk"), Lane::disk);
}

TimelineSpan of_unit(const char* unit, const char* name, double begin, double end) {
  TimelineSpan made = span(Lane::compute, name, begin, end);
  made.unit = unit;
  return made;
}

TEST(UnitTimes, AnInstantIsThatOfTheInnermostUnitAndNobodysWhileItWaits) {
  const auto times = unit_times(
      {of_unit("all", "forward", 0, 50), of_unit("a", "forward", 10, 30),
       span(Lane::wait, "all_gather", 15, 20), span(Lane::wait, "disk", 20, 50, /*computes=*/false),
       of_unit("a", "backward", 60, 90), of_unit("a", "recompute", 60, 70),
       of_unit("b", "backward", 80, 90)});
  using Names = std::pair<std::string, std::string>;
  const std::map<Names, double> expected = {{{"all", "forward"}, 30},
                                            {{"a", "forward"}, 15},
                                            {{"a", "recompute"}, 10},
                                            {{"a", "backward"}, 10},
                                            {{"b", "backward"}, 10}};
  EXPECT_EQ(times, expected);
  EXPECT_TRUE(unit_times({}).empty());
}

// What two machines would see whose clocks are `apart`, with these ways there and back.
PingPong exchange(double sent, double there, double back, double apart) {
  return {sent, sent + there + apart, sent + there + back};
}

TEST(ClockOffset, IsFoundThroughTheQuickestExchange) {
  for (const double apart : {0.0, 1234.5, -9e9}) {
    const double found =
        clock_offset_us({exchange(100, 500, 20, apart), exchange(700, 11, 9, apart),
                         exchange(800, 30, 400, apart)});
    EXPECT_NEAR(found, -apart, 10.0) << "at most half of the quickest exchange";
  }
  EXPECT_EQ(clock_offset_us({exchange(0, 5, 5, 42)}), -42);
  EXPECT_EQ(clock_offset_us({}), 0);
}

TEST(ClockOffset, PutsTheSpansOfTwoRanksOnOneClock) {
  RankTimeline other = one_step({span(Lane::gather, "all_gather", 1010, 1020)});
  other.steps = {{1, 1000, 1100}};
  shift(other, clock_offset_us({exchange(3, 2, 2, 1000)}));
  EXPECT_EQ(other.spans[0].begin_us, 10);
  EXPECT_EQ(other.spans[0].end_us, 20);
  EXPECT_EQ(other.steps[0], (StepWindow{1, 0, 100}));
}

}  // namespace
}  // namespace capstan::profile
