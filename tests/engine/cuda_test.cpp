// The core's promises on a GPU, each world in processes of its own: autograd has one thread per
// device, so ranks cannot be threads there.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/device/facts.h"

namespace capstan::engine {
namespace {

struct Outcome {
  int exit_code = 0;
  std::string text;
};

std::string bin_folder() {
  const char* const given = std::getenv("CAPSTAN_BIN");
  return given != nullptr ? given
                          : std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

Outcome run_shell(const std::string& command) {
  // cuBLAS is deterministic only with a workspace of its own.
  const std::string whole = "CUBLAS_WORKSPACE_CONFIG=:4096:8 timeout -k 5 300 " + command + " 2>&1";
  FILE* const pipe = popen(whole.c_str(), "r");
  Outcome outcome;
  char buffer[4096];
  while (const std::size_t n = fread(buffer, 1, sizeof buffer, pipe))
    outcome.text.append(buffer, n);
  outcome.exit_code = WEXITSTATUS(pclose(pipe));
  return outcome;
}

class CudaStages : public testing::Test {
 protected:
  void SetUp() override {
    if (device::list_devices().empty()) GTEST_SKIP() << "no GPU: " << device::why_no_devices();
  }
};

TEST_F(CudaStages, GiveTheSameBitsAloneOverNcclAlsoWithLateStreams) {
  const Outcome outcome = run_shell(bin_folder() + "/cuda_ranks");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, testing::HasSubstr("agree: bf16 3 backwards clip adamw"));
}

TEST_F(CudaStages, GiveTheSameBitsOnTwoRanksThatShareTheCardOverMpi) {
  if (std::system("command -v mpirun > /dev/null") != 0) {
    GTEST_SKIP() << "there is no mpirun on this machine";
  }
  const Outcome outcome =
      run_shell(bin_folder() + "/capstan launch -n 2 --launcher mpi --no_python " + bin_folder() +
                "/cuda_ranks");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, testing::HasSubstr("agree: bf16 3 backwards clip adamw"));
}

TEST_F(CudaStages, HybridShardingKeepsItsPromisesOnFourRanks) {
  if (std::system("command -v mpirun > /dev/null") != 0) {
    GTEST_SKIP() << "there is no mpirun on this machine";
  }
  const Outcome outcome =
      run_shell(bin_folder() + "/capstan launch -n 4 --launcher mpi --no_python " + bin_folder() +
                "/cuda_ranks");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, testing::HasSubstr("hybrid: shard groups count everything once"));
}

// An engine that is given no group: NCCL between cards, never MPI without a word.
TEST_F(CudaStages, AnEngineAloneNeedsNobodyToJoin) {
  for (const char* const how : {"join", "join without"}) {
    const Outcome alone = run_shell(bin_folder() + "/cuda_ranks " + how);
    EXPECT_EQ(alone.exit_code, 0) << alone.text;
    EXPECT_THAT(alone.text, testing::HasSubstr("joined: rank 0 of 1 on cuda:0"));
  }
}

TEST_F(CudaStages, AnEngineJoinsItsRanksOverNccl) {
  if (device::list_devices().size() < 2) GTEST_SKIP() << "NCCL needs a second GPU for two ranks";
  const Outcome two = run_shell(bin_folder() + "/capstan launch -n 2 --no_python " + bin_folder() +
                                "/cuda_ranks join");
  EXPECT_EQ(two.exit_code, 0) << two.text;
  EXPECT_THAT(two.text, testing::HasSubstr("joined: rank 1 of 2 on cuda:1"));
}

TEST_F(CudaStages, AnEngineWithoutNcclRefusesSeveralGpus) {
  // Before it looks for the other rank, which is not there.
  const Outcome outcome = run_shell(
      "env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 "
      "MASTER_PORT=29999 " +
      bin_folder() + "/cuda_ranks join without");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.text;
  EXPECT_THAT(outcome.text, testing::HasSubstr("Parts::start_nccl"));
}

}  // namespace
}  // namespace capstan::engine
