#include "capstan/precision/loss_scale.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::precision {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Options fp16(LossScaleOptions scale) { return {.params = DType::fp16, .loss_scale = scale}; }

struct Trace {
  std::vector<double> scales;
  std::vector<std::int64_t> tolerances;
  std::vector<ScaleEvent> events;
  LossScaleState last;
};

// The machine's answers to a row of steps; true stands for an overflow.
Trace run(const Options& options, const std::vector<bool>& overflows) {
  Trace trace;
  trace.last = initial_loss_scale(options);
  for (const bool overflowed : overflows) {
    const LossScaleStep step = next_loss_scale(options, trace.last, overflowed);
    trace.last = step.state;
    trace.scales.push_back(step.state.scale);
    trace.tolerances.push_back(step.state.tolerance);
    trace.events.push_back(step.event);
  }
  return trace;
}

constexpr LossScaleOptions kSmall = {.initial_scale_power = 8, .window_steps = 2};

TEST(LossScale, BeginsAtAPowerOfTwoAndMovesByTheFactor) {
  EXPECT_EQ(LossScaleOptions{}.initial_scale(), 65536.0);
  EXPECT_EQ(LossScaleOptions{.initial_scale_power = 0}.initial_scale(), 1.0);
  EXPECT_EQ(initial_loss_scale(fp16(kSmall)).scale, kSmall.initial_scale());
  EXPECT_EQ(LossScaleOptions::kFactor, 2.0);
  EXPECT_TRUE(fp16({}).scale_is_dynamic());
  EXPECT_FALSE(fp16({.static_scale = 8}).scale_is_dynamic());
  EXPECT_FALSE(Options{}.scale_is_dynamic());  // fp32
}

TEST(LossScale, HalvesAfterTheHysteresisAndDoublesAfterTheWindow) {
  const Trace trace =
      run(fp16(kSmall), {true, true, true, false, false, false, false, false, true, true});
  EXPECT_THAT(trace.scales, ElementsAre(256, 128, 64, 64, 64, 128, 128, 256, 256, 128));
  EXPECT_THAT(trace.tolerances, ElementsAre(1, 1, 1, 1, 1, 2, 2, 2, 1, 1));
}

TEST(LossScale, DoublesFirstAfterOneStepMoreThanTheWindow) {
  const Trace trace = run(fp16(kSmall), std::vector<bool>(8, false));
  EXPECT_THAT(trace.scales, ElementsAre(256, 256, 512, 512, 1024, 1024, 2048, 2048));
}

TEST(LossScale, ACleanStepRefillsAConsecutiveHysteresis) {
  LossScaleOptions scale = kSmall;
  scale.consecutive_hysteresis = true;
  scale.window_steps = 1000;
  const Trace trace = run(fp16(scale), {true, false, true, false, true, true});
  EXPECT_THAT(trace.scales, ElementsAre(256, 256, 256, 256, 256, 128));
  EXPECT_THAT(trace.tolerances, ElementsAre(1, 2, 1, 2, 1, 1));
}

TEST(LossScale, HysteresisOfOneHalvesAtEveryOverflow) {
  const Trace trace = run(fp16({.initial_scale_power = 4, .hysteresis = 1}), {true, true});
  EXPECT_THAT(trace.events, ElementsAre(ScaleEvent::halved, ScaleEvent::halved));
  EXPECT_THAT(trace.scales, ElementsAre(8, 4));
}

TEST(LossScale, StopsTheRunOnlyAtTheMinimum) {
  const Trace trace =
      run(fp16({.initial_scale_power = 3, .hysteresis = 1, .min_scale = 3}), {true, true, true});
  EXPECT_THAT(trace.scales, ElementsAre(4, 3, 3));
  EXPECT_THAT(trace.events,
              ElementsAre(ScaleEvent::halved, ScaleEvent::halved, ScaleEvent::at_minimum));
  EXPECT_TRUE(stops_run(trace.events.back()));
  EXPECT_THAT(stop_error({trace.last, trace.events.back()}, "h.0.weight").what,
              HasSubstr("'h.0.weight' is not finite although the loss scale is at its minimum, 3"));
}

TEST(LossScale, NeverRaisesAScaleThatStartsBelowTheMinimum) {
  const Trace trace =
      run(fp16({.initial_scale_power = 0, .hysteresis = 1, .min_scale = 4}), {true});
  EXPECT_THAT(trace.events, ElementsAre(ScaleEvent::at_minimum));
  EXPECT_EQ(trace.last.scale, 1);
}

TEST(LossScale, AFixedScaleSkipsAndNeverChanges) {
  const Trace trace = run(fp16({.static_scale = 128}), {true, false, true, true});
  EXPECT_THAT(trace.scales, testing::Each(128));
  EXPECT_THAT(trace.events, ElementsAre(ScaleEvent::skipped, ScaleEvent::kept, ScaleEvent::skipped,
                                        ScaleEvent::skipped));
}

TEST(LossScale, IsOneForWideTypesWhichStillSkip) {
  for (const DType params : {DType::bf16, DType::fp32}) {
    const Trace trace = run({.params = params}, {false, true});
    EXPECT_THAT(trace.scales, ElementsAre(1, 1));
    EXPECT_THAT(trace.events, ElementsAre(ScaleEvent::kept, ScaleEvent::skipped));
  }
}

TEST(LossScale, StopsAfterTheAllowedNumberOfSkippedStepsInARow) {
  Options options = {.params = DType::bf16, .max_skipped_in_a_row = 3};
  Trace trace = run(options, {true, true, false, true, true, true});
  EXPECT_EQ(trace.events.back(), ScaleEvent::too_many_skipped);
  for (std::size_t i = 0; i + 1 < trace.events.size(); ++i)
    EXPECT_FALSE(stops_run(trace.events[i]));
  EXPECT_THAT(stop_error({trace.last, trace.events.back()}, "").what,
              HasSubstr("3 steps in a row were skipped"));
  options.max_skipped_in_a_row = 0;
  trace = run(options, std::vector<bool>(100, true));
  EXPECT_FALSE(stops_run(trace.events.back()));
  EXPECT_EQ(trace.last.skipped_in_a_row, 100);
}

TEST(LossScale, AppliesCleanStepsOnly) {
  const Trace trace = run(fp16(kSmall), {false, false, false, true, true});
  EXPECT_THAT(trace.events, ElementsAre(ScaleEvent::kept, ScaleEvent::kept, ScaleEvent::grown,
                                        ScaleEvent::tolerated, ScaleEvent::halved));
  EXPECT_TRUE(applies_step(ScaleEvent::grown));
  EXPECT_FALSE(applies_step(ScaleEvent::tolerated));
  EXPECT_FALSE(applies_step(ScaleEvent::skipped));
}

TEST(LossScale, ContinuesFromASavedStateAsIfNothingHappened) {
  const std::vector<bool> steps = {true, false, false, false, true, true, false, false, false};
  const Options options = fp16(kSmall);
  LossScaleState straight = initial_loss_scale(options), resumed = straight;
  for (const bool overflowed : steps) {
    straight = next_loss_scale(options, straight, overflowed).state;
    resumed =
        next_loss_scale(options, restore_loss_scale(save(options, resumed)), overflowed).state;
    EXPECT_EQ(straight, resumed);
  }
  EXPECT_THROW(restore_loss_scale({{"scale", 1.0}}), ConfigError);
}

TEST(SkipReport, NamesTheParameterAndTheScales) {
  const Options options = fp16(kSmall);
  LossScaleState state = initial_loss_scale(options);
  LossScaleStep step = next_loss_scale(options, state, true);
  EXPECT_EQ(
      skip_report(state, step, "wte.weight"),
      "step skipped: the gradient of 'wte.weight' is not finite; loss scale stays 256, halved "
      "after 1 more (1 skipped in a row)");
  state = step.state;
  step = next_loss_scale(options, state, true);
  EXPECT_EQ(skip_report(state, step, ""),
            "step skipped: a gradient is not finite; loss scale 256 -> 128 (2 skipped in a row)");
  const Options bf16 = {.params = DType::bf16};
  state = initial_loss_scale(bf16);
  EXPECT_EQ(skip_report(state, next_loss_scale(bf16, state, true), "w"),
            "step skipped: the gradient of 'w' is not finite (1 skipped in a row)");
}

}  // namespace
}  // namespace capstan::precision
