// The program itself: `capstan config` as people call it.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.h"

namespace capstan::config {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Ran {
  int exit_code = -1;
  std::string output;  // both streams
};

class ConfigCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("CAPSTAN_BIN") == nullptr) GTEST_SKIP() << "CAPSTAN_BIN is not set";
  }

  static Ran run(const std::string& arguments) {
    const std::string command = "env -u RANK -u WORLD_SIZE '" +
                                std::string(std::getenv("CAPSTAN_BIN")) + "/capstan' config " +
                                arguments + " 2>&1";
    Ran ran;
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return ran;
    char buffer[4096];
    for (std::size_t size; (size = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
      ran.output.append(buffer, size);
    }
    ran.exit_code = WEXITSTATUS(pclose(pipe));
    return ran;
  }

  static std::string snippet(const char* name) {
    return "'" + source_folder() + "/tests/config/snippets/" + name + ".hjson'";
  }
};

TEST_F(ConfigCommand, ChecksAGoodFileWithExitCodeZero) {
  const Ran ran = run("check -n 2 " + snippet("stage2_fp16_auto"));
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.output, HasSubstr("warning: \"true\" is a string"));
  EXPECT_THAT(ran.output, HasSubstr("OK: stage 2, fp16 parameters, batch 2 = 1 x 1 x 2"));
}

TEST_F(ConfigCommand, ListsAllProblemsWithExitCodeTwo) {
  const Ran ran = run("check " + snippet("annotated_with_placeholders"));
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.output, HasSubstr("5 problems in"));
  EXPECT_THAT(ran.output, HasSubstr("snippets/annotated_with_placeholders.hjson:44:18"));
  EXPECT_EQ(run("check " + snippet("cut_off")).exit_code, 2);
  EXPECT_EQ(run("check no_such_file.json").exit_code, 2);
  EXPECT_EQ(run("check / ").exit_code, 2);
  EXPECT_EQ(run("check").exit_code, 2);
  EXPECT_EQ(run("check -n 0 '{}'").exit_code, 2);
}

TEST_F(ConfigCommand, TakesTextBase64AndLeniency) {
  EXPECT_EQ(run("check '{\"train_batch_size\": 8}'").exit_code, 0);
  EXPECT_EQ(run("check eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0").exit_code, 0);
  EXPECT_EQ(run("check '{\"mine\": 8}'").exit_code, 2);
  EXPECT_EQ(run("check --lenient '{\"mine\": 8}'").exit_code, 0);
}

TEST_F(ConfigCommand, ExplainsEveryValueWithItsOrigin) {
  const Ran ran = run("explain -n 4 '{\"train_batch_size\": 32, \"gradient_clipping\": \"auto\"}'");
  EXPECT_EQ(ran.exit_code, 0);
  for (const char* part : {"data-parallel ranks: 4 (command line: -n 4)", "config text:1:22",
                           "derived: 32 / (1 x 4)", "auto: Trainer", "default", "[no effect: "}) {
    EXPECT_THAT(ran.output, HasSubstr(part));
  }
  EXPECT_THAT(run("explain --json '{}'").output, StartsWith("{\n  \"data_parallel_ranks\": 1"));
}

TEST_F(ConfigCommand, ReadsTheWorldSizeOfTheEnvironment) {
  EXPECT_THAT(
      run("explain '{}'; WORLD_SIZE=6 RANK=0 \"$CAPSTAN_BIN\"/capstan config explain '{}'").output,
      HasSubstr("data-parallel ranks: 6 (environment: "));
}

TEST_F(ConfigCommand, PrintsSchemaFeaturesAndReferencePage) {
  EXPECT_THAT(run("features").output,
              HasSubstr("| sparse attention | refused | `sparse_attention`"));
  EXPECT_THAT(run("schema").output, StartsWith("{\n  \"$schema\""));
  EXPECT_EQ(run("docs").output, read_source_file("docs/config.md"));
}

}  // namespace
}  // namespace capstan::config
