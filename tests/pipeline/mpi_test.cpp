// The executor between processes, over MPI.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace capstan::pipeline {
namespace {

// `timeout` ends what hangs: that is a failure of the test, never a hang of its own.
TEST(ExecutorOverMpi, EveryScheduleGivesTheBitsOfARunWithoutAPipeline) {
  const char* const given = std::getenv("CAPSTAN_BIN");
  const std::string folder =
      given != nullptr ? given
                       : std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  for (const int ranks : {2, 3}) {
    const std::string command =
        "timeout -k 5 240 mpirun --allow-run-as-root --oversubscribe --bind-to none "
        "--mca plm_rsh_agent sh -np " +
        std::to_string(ranks) + " " + folder + "/pipeline_ranks 2>&1";
    FILE* const pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string text;
    std::array<char, 256> line{};
    while (fgets(line.data(), line.size(), pipe) != nullptr) text += line.data();
    EXPECT_EQ(pclose(pipe), 0) << text;
  }
}

}  // namespace
}  // namespace capstan::pipeline
