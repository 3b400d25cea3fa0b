#include "capstan/monitor/log.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/monitor/run_file.h"
#include "tests/support/temp_folder.h"

namespace capstan::monitor {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Heard final : public Logger {
 public:
  void log(LogLevel level, std::string_view text) override {
    EXPECT_EQ(level, LogLevel::warning);
    lines.emplace_back(text);
  }
  std::vector<std::string> lines;
};

class FailsAtTheThird final : public Sink {
 public:
  explicit FailsAtTheThird(int& calls) : calls_(calls) {}
  void write(const std::vector<Event>& /*events*/) override {
    if (++calls_ == 3) throw std::runtime_error("the service is away");
  }

 private:
  int& calls_;
};

Options all_in(const fs::path& folder) {
  Options options;
  options.metrics = folder / "m.jsonl";
  options.csv = {.enabled = true, .output_path = folder, .job_name = "csv"};
  options.tensorboard = {.enabled = true, .output_path = folder, .job_name = "tb"};
  return options;
}

TEST(MonitorLog, TellsEveryMonitor) {
  const test::TempFolder folder;
  Heard heard;
  Log log(all_in(folder.path()), {.logger = heard});
  log.step({.step = 1, .samples = 8, .loss = 2});
  log.validation({.step = 1, .samples = 8}, 3);
  EXPECT_TRUE(fs::exists(folder.path() / "csv" / "Train_Samples_train_loss.csv"));
  EXPECT_TRUE(fs::exists(folder.path() / "csv" / "Train_Samples_eval_loss.csv"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path() / "tb"), {}), 1);
  RunFile run(folder.path() / "m.jsonl");
  run.read_more(true);
  EXPECT_EQ(run.column("loss").at(1), 2);
  EXPECT_EQ(run.validation_losses().at(1), 3);
  EXPECT_TRUE(heard.lines.empty());
}

TEST(MonitorLog, GoesOnWithoutAMonitorThatFailsAndSaysSoOnce) {
  const test::TempFolder folder;
  Heard heard;
  int calls = 0;
  LogParts parts{.logger = heard};
  parts.others.push_back(std::make_unique<FailsAtTheThird>(calls));
  Log log(all_in(folder.path()), std::move(parts));
  log.step({.step = 1});
  fs::remove_all(folder.path() / "csv");
  for (int step = 2; step <= 5; ++step) log.step({.step = step});
  EXPECT_EQ(calls, 3);
  EXPECT_THAT(heard.lines, ElementsAre(HasSubstr("the CSV monitor is left out from here on"),
                                       HasSubstr("the service is away")));
  RunFile run(folder.path() / "m.jsonl");
  run.read_more(true);
  EXPECT_EQ(run.steps().size(), 5U);
}

TEST(MonitorLog, AFullDiskIsOneWarning) {
  Heard heard;
  Options options;
  options.metrics = "/dev/full";
  Log log(options, {.logger = heard});
  for (int step = 1; step <= 3; ++step) log.step({.step = step});
  EXPECT_THAT(heard.lines, ElementsAre(HasSubstr("the metrics file is left out")));
}

TEST(MonitorLog, WhatCannotBeginIsAnError) {
  const test::TempFolder folder;
  Heard heard;
  Options options;
  options.metrics = folder.path() / "none" / "m.jsonl";
  EXPECT_THROW(Log(options, {.logger = heard}), IoError);
}

}  // namespace
}  // namespace capstan::monitor
