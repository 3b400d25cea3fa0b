#include "capstan/monitor/run_file.h"

#include <cmath>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "capstan/base/error.h"
#include "capstan/monitor/metrics_file.h"
#include "tests/support/temp_folder.h"

namespace capstan::monitor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class RunFileTest : public testing::Test {
 protected:
  void append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }
  RunFile read() const {
    RunFile file(path_);
    file.read_more(/*ended=*/true);
    return file;
  }
  const test::TempFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "m.jsonl";
};

TEST(MetricsLine, IsOneJsonObject) {
  StepStats stats{.step = 120, .samples = 960, .time_s = 1.5e9, .loss = 2.314, .lr = 6e-4};
  stats.grad_norm = HUGE_VAL;
  stats.skipped = true;
  stats.tokens_per_s = 5;
  stats.host_bytes = 900 << 20;
  stats.held_bytes = {{"parameters", 12}};
  const std::string line = metrics_line(stats);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["step"], 120);
  EXPECT_EQ(json["loss"], 2.314);
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_EQ(json["skipped"], true);
  EXPECT_EQ(json["memory_bytes"]["host"], 900 << 20);
  EXPECT_EQ(json["held_bytes"]["parameters"], 12);
  EXPECT_EQ(json["samples"], 960);
  EXPECT_FALSE(json.contains("samples_per_s")) << "nobody measured it";
}

TEST_F(RunFileTest, HasWhatWasWritten) {
  MetricsFile file(path_);
  file.write(run_line({{"model", "tiny <b>"}}, {{"a.b", "2", "in the file", true}}));
  file.write(metrics_line({.step = 1, .loss = 5.5, .lr = 0.25}));
  file.write(metrics_line({.step = 2, .loss = 4.5, .lr = 0.125}));
  file.write(validation_line(2, 4.75));
  const RunFile run = read();
  run.check();
  EXPECT_THAT(run.column("loss"), ElementsAre(Pair(1, 5.5), Pair(2, 4.5)));
  EXPECT_THAT(run.column("lr"), ElementsAre(Pair(1, 0.25), Pair(2, 0.125)));
  EXPECT_THAT(run.validation_losses(), ElementsAre(Pair(2, 4.75)));
  EXPECT_EQ(run.damage(), "");
  const auto told = nlohmann::json::parse(run.run());
  EXPECT_EQ(told["facts"]["model"], "tiny <b>");
  EXPECT_EQ(told["config"][0], nlohmann::json::parse(R"(["a.b","2","in the file",true])"));
  EXPECT_TRUE(told["environment"].contains("host"));
}

TEST_F(RunFileTest, ReadsFilesOfBefore) {
  append(R"({"step":1,"loss":5.5,"lr":0.001,"memory_bytes":{"device":7,"host":9}})"
         "\n");
  EXPECT_THAT(read().column("memory_bytes.host"), ElementsAre(Pair(1, 9)));
}

TEST_F(RunFileTest, FollowsAFileThatGrowsLineByLine) {
  append("{\"step\":1,\"loss\":5}\n{\"step\":2,\"lo");
  RunFile file(path_);
  EXPECT_TRUE(file.read_more(/*ended=*/false));
  EXPECT_THAT(file.column("loss"), ElementsAre(Pair(1, 5)));
  EXPECT_FALSE(file.read_more(/*ended=*/false));
  append("ss\":4}\n");
  EXPECT_TRUE(file.read_more(/*ended=*/false));
  EXPECT_THAT(file.column("loss"), ElementsAre(Pair(1, 5), Pair(2, 4)));
  EXPECT_EQ(file.damage(), "");
}

TEST_F(RunFileTest, ARunThatWentBackHasItsLastStepsOnly) {
  append("{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":4}\n{\"step\":3,\"loss\":3}\n");
  append("{\"step\":3,\"validation_loss\":9}\n{\"step\":2,\"loss\":4.5}\n");
  EXPECT_THAT(read().column("loss"), ElementsAre(Pair(1, 5), Pair(2, 4.5)));
  EXPECT_TRUE(read().validation_losses().empty());
}

TEST_F(RunFileTest, TellsWhichLinesAreCut) {
  append("{\"step\":1,\"loss\":5}\n{\"st\n{\"step\":2,\"loss\":4}\n{\"step\":3,\"l");
  const RunFile run = read();
  run.check();
  EXPECT_EQ(run.column("loss").size(), 2U);
  EXPECT_EQ(run.damage(), "2 lines are no complete steps and are left out; the first is line 2");
}

TEST_F(RunFileTest, SaysWhatIsWrongWithAFileThatIsNoneOrEmpty) {
  const auto what_of = [](const RunFile& file) {
    try {
      file.check();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("fine");
  };
  append("\n");
  EXPECT_THAT(what_of(read()), HasSubstr("there is no step in this file"));
  append("a,b\n1,2\n");
  EXPECT_THAT(what_of(read()), HasSubstr("m.jsonl, line 2"));
  RunFile missing(folder_.path() / "none");
  EXPECT_THROW(missing.read_more(true), IoError);
  RunFile a_folder(folder_.path());
  EXPECT_THROW(a_folder.read_more(true), IoError);
}

TEST_F(RunFileTest, HasALinePerWriteAndNamesABadPath) {
  MetricsFile file(path_);
  file.write(validation_line(120, 2.5));
  std::string line;
  std::getline(std::ifstream(path_) >> std::ws, line);
  EXPECT_EQ(line, R"({"step":120,"validation_loss":2.5})");
  EXPECT_THROW(MetricsFile(folder_.path() / "absent" / "m.jsonl"), IoError);
}

TEST_F(RunFileTest, GoesOnAfterALineThatWasCutOff) {
  append("{\"step\":1}\n{\"st");
  for (const char* line : {"{\"step\":2}", "{\"step\":3}"}) {
    MetricsFile(path_, MetricsFile::Begin::at_end).write(line);
  }
  EXPECT_EQ(read().steps().size(), 3U);
}

}  // namespace
}  // namespace capstan::monitor
