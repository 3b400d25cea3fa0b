// The MPI backend between real processes: comm_ranks under mpirun.
#include "capstan/comm/mpi/mpi.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/device/facts.h"
#include "tests/support/temp_folder.h"

namespace capstan::comm {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

struct Outcome {
  int exit_code = 0;
  std::string text;  // what mpirun printed, then what each rank did

  // The lines that begin with a rank's mark.
  std::vector<std::string> of_rank(int rank) const {
    std::vector<std::string> lines;
    for (const std::string& line : split(text, '\n')) {
      if (line.starts_with("[" + std::to_string(rank) + "] ")) lines.push_back(line.substr(4));
    }
    return lines;
  }
};

std::string programs_folder() {
  const char* given = std::getenv("CAPSTAN_BIN");
  return given != nullptr ? given
                          : std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

// `timeout` ends what hangs: that is a failure of these tests, never a hang of theirs.
// Each rank writes to a file of its own: mpirun passes output on in pieces that cut others' lines.
Outcome run_under_mpi(int ranks, const std::string& arguments, const std::string& flags = "") {
  const test::TempFolder folder;
  const std::string files = (folder / "rank.").string();
  const std::string command =
      "timeout -k 5 240 mpirun --allow-run-as-root --oversubscribe --enable-recovery "
      "--bind-to none --mca plm_rsh_agent sh " +
      flags + " -np " + std::to_string(ranks) + " sh -c 'exec " + programs_folder() +
      "/comm_ranks " + arguments + " > " + files + "$OMPI_COMM_WORLD_RANK 2>&1' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  Outcome outcome;
  char buffer[4096];
  while (const std::size_t n = fread(buffer, 1, sizeof buffer, pipe)) {
    outcome.text.append(buffer, n);
  }
  outcome.exit_code = WEXITSTATUS(pclose(pipe));
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream file(files + std::to_string(rank));
    outcome.text.append("\n").append(std::istreambuf_iterator<char>(file), {});
  }
  return outcome;
}

class Mpi4 : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(programs_folder() + "/comm_ranks")) {
      GTEST_SKIP() << "this build has no MPI";
    }
    if (std::system("command -v mpirun > /dev/null") != 0) {
      GTEST_SKIP() << "there is no mpirun on this machine";
    }
  }
};

TEST_F(Mpi4, GetsEveryCollectiveRightForEveryDtypeAndSize) {
  for (const int ranks : {1, 2, 3}) {
    const Outcome outcome = run_under_mpi(ranks, "check 1");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_THAT(outcome.of_rank(rank), testing::ElementsAre("ok")) << outcome.text;
    }
  }
}

TEST_F(Mpi4, CutsLargeMessages) {
  const Outcome outcome = run_under_mpi(3, "chunks 1000");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.of_rank(2), testing::ElementsAre("ok")) << outcome.text;
}

TEST_F(Mpi4, MovesTensorsOfOneGpuThatRanksShare) {
  if (device::list_devices().empty()) {
    GTEST_SKIP() << "no GPU: " << device::why_no_devices();
  }
  const Outcome outcome = run_under_mpi(3, "cuda");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.of_rank(rank), testing::ElementsAre("ok")) << outcome.text;
  }
}

TEST_F(Mpi4, MakesGroupsOfAMeshThatDoNotMeet) {
  const Outcome outcome = run_under_mpi(4, "mesh");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.of_rank(0), testing::ElementsAre("data 2 tensor 1"));
  EXPECT_THAT(outcome.of_rank(3), testing::ElementsAre("data 4 tensor 5"));
}

TEST_F(Mpi4, FindsMismatchesWithinSecondsAndNamesRanksAndOperations) {
  const Outcome outcome = run_under_mpi(4, "mismatch");
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<std::string> lines = outcome.of_rank(rank);
    ASSERT_EQ(lines.size(), 6u) << outcome.text;
    EXPECT_THAT(lines[0], AllOf(HasSubstr("operation: CommError"), HasSubstr("does not match"),
                                HasSubstr("rank 2 issued all_to_all of 4000 fp32 (unit 7)")));
    EXPECT_THAT(lines[1], AllOf(HasSubstr("size: CommError"), HasSubstr("does not match"),
                                HasSubstr("rank 2 issued reduce_scatter of 2000 fp32")));
    EXPECT_THAT(lines[2], AllOf(HasSubstr("dtype: CommError"), HasSubstr("does not match"),
                                HasSubstr("rank 2 issued reduce_scatter of 4000 fp16")));
    EXPECT_THAT(lines[3], AllOf(HasSubstr("root: CommError"), HasSubstr("does not match"),
                                HasSubstr("rank 2 issued broadcast of 4000 fp32 from rank 2")));
    EXPECT_THAT(lines[4],
                AllOf(HasSubstr("unit: CommError"), HasSubstr("gather different units (unit "),
                      HasSubstr("rank 2 issued all_gather of 4000 fp32 (unit 8)")));
    EXPECT_THAT(lines[5], HasSubstr("within seconds"));
  }
}

TEST_F(Mpi4, AnAbortReachesEveryRankWithItsReason) {
  const Outcome outcome = run_under_mpi(4, "abort");
  for (const int rank : {0, 2, 3}) {
    ASSERT_FALSE(outcome.of_rank(rank).empty()) << outcome.text;
    EXPECT_THAT(outcome.of_rank(rank)[0],
                HasSubstr("rank 1 aborted the group: the data file is gone"));
  }
}

TEST_F(Mpi4, SleepsWhileThereIsNothingToMove) {
  const Outcome outcome = run_under_mpi(2, "idle");
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_FALSE(outcome.of_rank(rank).empty()) << outcome.text;
    double waiting = 1;
    double idle = 1;
    std::sscanf(outcome.of_rank(rank)[0].c_str(), "waiting %lf idle %lf", &waiting, &idle);
    EXPECT_LT(waiting, 0.25);  // of one core; a spinning thread would show 1
    EXPECT_LT(idle, 0.05);
  }
}

// Kills one of four ranks in the middle of an operation. Every survivor reports a CommError with
// its last operations within the timeout; twice as much again is for a machine that is busy (with
// eight others at work on each of its cores 4.3 s were seen).
constexpr int kTimeoutSeconds = 4;

class Killed : public Mpi4, public testing::WithParamInterface<const char*> {};

TEST_P(Killed, RankIsACommErrorOnEverySurvivor) {
  const Outcome outcome = run_under_mpi(
      4, std::string("fail ") + GetParam() + " 2 9 " + std::to_string(kTimeoutSeconds));
  EXPECT_NE(outcome.exit_code, 124) << "a survivor hung";
  int naming = 0;
  for (const int rank : {0, 1, 3}) {
    const std::vector<std::string> lines = outcome.of_rank(rank);
    ASSERT_EQ(lines.size(), 1u) << outcome.text;
    EXPECT_THAT(lines[0], HasSubstr("CommError after"));
    double seconds = 1000;
    std::sscanf(lines[0].c_str(), "CommError after %lf", &seconds);
    EXPECT_LT(seconds, 3 * kTimeoutSeconds);
    naming += lines[0].find("rank 2 does not answer") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(naming, 0) << outcome.text;  // whoever waited for the dead one says so
  EXPECT_THAT(outcome.text, HasSubstr("last operations of rank 0 of 4 in group 'world'"));
}

INSTANTIATE_TEST_SUITE_P(InTheMiddleOf, Killed,
                         testing::Values("all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                         "all_to_all", "ring", "barrier"),
                         [](const auto& info) { return std::string(info.param); });

// One run: a rank is stopped in the middle of each operation and continued after the others'
// timeout; each operation has its own group, so the next starts afresh.
TEST_F(Mpi4, AStoppedRankIsACommErrorOnEverySurvivor) {
  const Outcome outcome = run_under_mpi(4, "stop 2");
  for (const int rank : {0, 2, 3}) {
    const std::vector<std::string> lines = outcome.of_rank(rank);
    ASSERT_EQ(lines.size(), 8u) << outcome.text;
    for (int i = 0; i < 7; ++i) EXPECT_THAT(lines[i], HasSubstr(": CommError after"));
    EXPECT_EQ(lines[7], "7 of 7 operations failed");
  }
  EXPECT_THAT(outcome.text, HasSubstr("rank 1 does not answer"));
}

TEST(Mpi, IsRefusedWhereNoMpiLauncherStartedTheProcess) {
  RankEnv env;
  env.world_size = 2;
  env.launcher = "torchrun";
  try {
    start_mpi(env);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_FALSE(error.info().fix.empty());
  }
}

}  // namespace
}  // namespace capstan::comm
