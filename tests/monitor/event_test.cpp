#include "capstan/monitor/event.h"

#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::monitor {
namespace {

std::map<std::string, double> values_of(const StepStats& stats) {
  std::map<std::string, double> values;
  for (const Event& event : events_of(stats)) {
    EXPECT_EQ(event.samples, stats.samples);
    values[event.name] = event.value;
  }
  return values;
}

TEST(Events, HaveTheNamesThatUsersOfMonitorsKnow) {
  StepStats stats{.step = 3, .samples = 24, .loss = 2.5, .lr = 0.125, .loss_scale = 1024};
  stats.scales_loss = true;
  stats.times = PhaseMilliseconds{.forward = 1, .backward = 5, .reduce = 2, .step = 4};
  auto values = values_of(stats);
  EXPECT_EQ(values["Train/Samples/train_loss"], 2.5);
  EXPECT_EQ(values["Train/Samples/lr"], 0.125);
  EXPECT_EQ(values["Train/Samples/loss_scale"], 1024);
  EXPECT_EQ(values["Train/Samples/elapsed_time_ms_forward"], 1);
  EXPECT_EQ(values["Train/Samples/elapsed_time_ms_backward"], 5);
  EXPECT_EQ(values["Train/Samples/elapsed_time_ms_backward_inner"], 3);
  EXPECT_EQ(values["Train/Samples/elapsed_time_ms_backward_allreduce"], 2);
  EXPECT_EQ(values["Train/Samples/elapsed_time_ms_step"], 4);
}

TEST(Events, TellOurFiguresToo) {
  StepStats stats{.grad_norm = 0.5, .skipped_steps = 2, .samples_per_s = 9, .tokens_per_s = 90};
  stats.held_bytes = {{"parameters", 100}, {"host optimizer", 200}};
  auto values = values_of(stats);
  EXPECT_EQ(values["Train/Samples/grad_norm"], 0.5);
  EXPECT_EQ(values["Train/Samples/skipped_steps"], 2);
  EXPECT_EQ(values["Train/Samples/samples_per_second"], 9);
  EXPECT_EQ(values["Train/Samples/tokens_per_second"], 90);
  EXPECT_EQ(values["Train/Samples/memory_parameters_bytes"], 100);
  EXPECT_EQ(values["Train/Samples/memory_host_optimizer_bytes"], 200);
}

TEST(Events, LeaveOutWhatIsNotKnownOrNotFinite) {
  StepStats stats{.loss_scale = 8};
  stats.grad_norm = HUGE_VAL;
  const auto values = values_of(stats);
  for (const char* figure : {"train_loss", "grad_norm", "loss_scale", "samples_per_second",
                             "elapsed_time_ms_step", "gpu_use"}) {
    EXPECT_FALSE(values.contains(std::string("Train/Samples/") + figure)) << figure;
  }
}

}  // namespace
}  // namespace capstan::monitor
