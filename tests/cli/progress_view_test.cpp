#include "capstan/cli/train/progress_view.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "capstan/base/error.h"
#include "capstan/cli/train/gpu_use.h"
#include "capstan/cli/train/losses.h"
#include "capstan/monitor/metrics_file.h"
#include "tests/support/temp_folder.h"

namespace capstan::cli::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepStats some_stats() {
  StepStats stats;
  stats.step = 120;
  stats.max_steps = 300;
  stats.loss = 2.314;
  stats.lr = 6e-4;
  stats.tokens_per_s = 12345;
  stats.flops_per_s = 2.5e12;
  stats.device_bytes = 512 << 20;
  stats.host_bytes = 900 << 20;
  return stats;
}

// What a view writes in one run of `use`.
std::string written(const ViewOptions& options, void (*use)(ProgressView&)) {
  std::FILE* const file = std::tmpfile();
  const auto view = make_progress_view(file, options);
  use(*view);
  std::fseek(file, 0, SEEK_SET);
  std::string text(1 << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

void three_steps(ProgressView& view) {
  for (const int step : {1, 2, 3}) {
    StepStats stats = some_stats();
    stats.step = step;
    stats.max_steps = 3;
    view.step(stats);
  }
  view.note("a remark");
  view.finish();
}

TEST(Figures, AreOneLineWithUnits) {
  EXPECT_EQ(figures(some_stats()),
            "step 120/300  loss 2.3140  lr 6.00e-04  12.3k tok/s  2.5 TFLOP/s  mem 512 MiB");
}

TEST(Figures, ShowLossScaleGpuUseAndSkippedStepsOnlyWhenThereAreAny) {
  StepStats stats = some_stats();
  stats.loss_scale = 65536;
  stats.gpu_use = 0.97;
  stats.skipped = true;
  EXPECT_THAT(figures(stats), HasSubstr("scale 65536"));
  EXPECT_THAT(figures(stats), HasSubstr("gpu 97%  skipped"));
}

TEST(BarLine, LeavesOutWholeFiguresAndKeepsTheTimeLeft) {
  const std::chrono::seconds left(61);
  EXPECT_EQ(bar_line(some_stats(), left, 80),
            "[########............] step 120/300  loss 2.3140  lr 6.00e-04  1:01 left");
  EXPECT_EQ(bar_line(some_stats(), left, 40), "step 120/300  loss 2.3140  1:01 left");
  EXPECT_EQ(bar_line(some_stats(), left, 30), "step 120/300  1:01 left");
}

TEST(BarLine, NeverFillsTheLastColumn) {
  for (const int columns : {0, 1, 10, 80, 200}) {
    const auto length = bar_line(some_stats(), std::chrono::seconds(61), columns).size();
    EXPECT_LE(length, static_cast<std::size_t>(std::max(0, columns - 1)));
  }
  EXPECT_THAT(bar_line(some_stats(), std::chrono::seconds(61), 200),
              testing::AllOf(testing::StartsWith("[########............] step"),
                             testing::EndsWith("1:01 left")));
}

TEST(ClockText, HasHoursOnlyWhenNeeded) {
  EXPECT_EQ(clock_text(std::chrono::seconds(5)), "0:05");
  EXPECT_EQ(clock_text(std::chrono::seconds(3671)), "1:01:11");
}

TEST(ProgressView, PrintsPlainLinesWithoutATerminal) {
  const std::string text = written({.columns = 0, .log_every = 2}, three_steps);
  EXPECT_THAT(text, HasSubstr("step 1/3"));
  EXPECT_THAT(text, HasSubstr("step 2/3"));
  EXPECT_THAT(text, HasSubstr("step 3/3"));
  EXPECT_THAT(text, testing::EndsWith("a remark\n"));
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(written({.columns = 0, .log_every = 5}, three_steps), Not(HasSubstr("step 2/3")));
}

TEST(ProgressView, RedrawsItsLineOnATerminal) {
  const std::string text = written({.columns = 200}, three_steps);
  EXPECT_THAT(text, HasSubstr("\033[?7l[######..............] step 1/3"))
      << "a narrower terminal would wrap it";
  EXPECT_THAT(text, HasSubstr("\033[K\033[?7h\r\033[m"));
  EXPECT_THAT(text, HasSubstr("a remark\033[K\n"));
  EXPECT_THAT(text, testing::EndsWith("\n"));
}

TEST(VisibleDevice, FollowsTheEnvironment) {
  EXPECT_EQ(visible_device(nullptr, 3), "3");
  EXPECT_EQ(visible_device("5, GPU-abc", 1), "GPU-abc");
  EXPECT_EQ(visible_device("5", 1), "");
}

TEST(ReadLosses, ThoseOfAStepTakenAgainCountAndWhatCameAfterTheCheckpointDoesNot) {
  const test::TempFolder folder;
  const auto path = folder.path() / "m.jsonl";
  std::ofstream(path) << monitor::validation_line(1, 9.0) << "\n{\"step\":1,\"loss\":8.0}\n"
                      << "{\"step\":2,\"loss\":7.0}\n{\"step\":2,\"loss\":6.0}\n[]\n"
                      << "{\"step\":3,\"loss\":null}\n{\"step\":4,\"loss\":5.0}\n{\"st";
  Curve curve;
  read_losses(path, 3, curve);
  ASSERT_EQ(curve.train.size(), 2U);
  EXPECT_EQ(curve.train[1].step, 2);
  EXPECT_EQ(curve.train[1].loss, 6.0);
  ASSERT_EQ(curve.validation.size(), 1U);
  read_losses(folder.path() / "absent", 3, curve);
  EXPECT_TRUE(curve.train.empty());
}

}  // namespace
}  // namespace capstan::cli::train
