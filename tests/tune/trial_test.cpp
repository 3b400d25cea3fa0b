// Real jobs, as small as a shell: whatever happens in one is an outcome.
#include "capstan/tune/trial.h"

#include <csignal>
#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/tune/trial_files.h"

namespace capstan::tune {
namespace {

using testing::HasSubstr;

class TrialTest : public testing::Test {
 protected:
  TrialTest() {
    std::string name = testing::TempDir() + "trial-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~TrialTest() override { std::filesystem::remove_all(folder_); }

  Outcome run(const std::string& script, int ranks = 1, int seconds = 60) {
    TrialJob trial;
    trial.job.program = {.words = {"/bin/sh", "-c", script}, .python = false};
    trial.job.ranks_per_host = ranks;
    trial.job.launcher = launch::Launcher::local;
    trial.job.extra_env["RECORD"] = (folder_ / "metrics.json").string();
    trial.record = folder_ / "metrics.json";
    trial.folder = folder_;
    trial.limit = std::chrono::seconds(seconds);
    launch::SignalWatch signals;
    return run_trial(trial, signals);
  }

  std::filesystem::path folder_;
};

constexpr const char* kWrite =
    "echo '{\"stage\": 2, \"micro_batch\": 4, \"accumulation_steps\": "
    "1, \"latency\": 0.5, \"throughput\": 16, \"memory_bytes\": 1024}' > $RECORD.new; mv "
    "$RECORD.new $RECORD; ";

TEST_F(TrialTest, EndsWithItsMeasurement) {
  const Outcome outcome = run(std::string(kWrite) + "sleep 1000");
  EXPECT_EQ(outcome.end, End::measured) << outcome.why;
  EXPECT_EQ(outcome.latency, 0.5);
  EXPECT_EQ(outcome.throughput, 16);
  EXPECT_EQ(outcome.memory_bytes, 1024);
}

TEST_F(TrialTest, AJobThatIgnoresAllRequestsIsKilled) {
  const Outcome outcome = run(std::string(kWrite) + "trap '' TERM INT; sleep 1000 & wait; wait");
  EXPECT_EQ(outcome.end, End::measured) << outcome.why;
}

TEST_F(TrialTest, TellsAFailureByItsLastWords) {
  const Outcome outcome = run("echo no such data set >&2; exit 7");
  EXPECT_EQ(outcome.end, End::failed);
  EXPECT_THAT(outcome.why, HasSubstr("exited with code 7: no such data set"));
}

TEST_F(TrialTest, TellsMemoryThatRanOutOnAnyRank) {
  const Outcome outcome = run(
      "if [ $RANK = 1 ]; then echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2; exit 1; fi; "
      "sleep 1000",
      2);
  EXPECT_EQ(outcome.end, End::out_of_memory) << outcome.why;
  EXPECT_EQ(run("echo 'out of memory is no error here' >&2").end, End::failed);
}

TEST_F(TrialTest, AHangIsAResult) {
  const Outcome outcome = run("sleep 1000", 1, 1);
  EXPECT_EQ(outcome.end, End::too_long);
  EXPECT_THAT(outcome.why, HasSubstr("after 1 s"));
}

TEST_F(TrialTest, AScriptThatEndsTooSoonHasNotMeasuredAnything) {
  const Outcome outcome = run("true");
  EXPECT_EQ(outcome.end, End::failed);
  EXPECT_THAT(outcome.why, HasSubstr("before autotuning.end_profile_step"));
}

TEST_F(TrialTest, ASignalStopsIt) {
  EXPECT_EQ(run("kill -INT $PPID; sleep 1000").end, End::stopped);
}

TEST_F(TrialTest, ARecordThatIsCutOffIsNone) {
  std::ofstream(folder_ / "metrics.json") << "{\"stage\": 2, \"late";
  EXPECT_FALSE(read_record(folder_ / "metrics.json").has_value());
  std::ofstream(folder_ / "metrics.json") << "{\"stage\": 2}";
  EXPECT_FALSE(read_record(folder_ / "metrics.json").has_value());
  EXPECT_FALSE(read_record(folder_ / "nowhere.json").has_value());
}

TEST_F(TrialTest, WhatTheJobTrainedIsComparedWithWhatItWasAskedTo) {
  const Record record{.stage = 2, .micro = {4, 2}};
  EXPECT_EQ(difference(record, 2, {4, 2}), "");
  EXPECT_THAT(difference(record, 2, {8, 2}), HasSubstr("4 instead of 8"));
  EXPECT_THAT(difference(record, 2, {4, 1}), HasSubstr("gradient_accumulation_steps 2"));
  EXPECT_THAT(difference(record, 3, {4, 2}), HasSubstr("stage 2 instead of 3"));
}

TEST_F(TrialTest, OnlyTheSameExperimentIsKnown) {
  const TrialFiles files(folder_ / "results", folder_ / "exps");
  Experiment experiment{.name = "z2", .config = json::Value(json::Object{}), .words = {"a", "b"}};
  EXPECT_FALSE(files.known(experiment).has_value());
  files.begin(experiment, experiment.config);
  EXPECT_FALSE(files.known(experiment).has_value());  // it has not ended
  const Outcome outcome{.end = End::out_of_memory, .why = "too large"};
  files.end(experiment, outcome);
  EXPECT_EQ(files.known(experiment), outcome);
  experiment.words.push_back("c");
  EXPECT_FALSE(files.known(experiment).has_value());
}

}  // namespace
}  // namespace capstan::tune
