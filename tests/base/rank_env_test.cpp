#include "capstan/base/rank_env.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan {
namespace {

using Vars = std::map<std::string, std::string>;

RankEnv read(const Vars& vars) {
  return read_rank_env([&](const std::string& name) -> std::optional<std::string> {
    const auto found = vars.find(name);
    if (found == vars.end()) return {};
    return found->second;
  });
}

Vars operator+(Vars a, const Vars& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

const Vars kMpirun = {{"OMPI_COMM_WORLD_RANK", "3"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"PMIX_RANK", "3"},
                      {"PMIX_NAMESPACE", "12"}};
const Vars kTorchrun = {
    {"RANK", "5"},        {"WORLD_SIZE", "8"},       {"LOCAL_RANK", "1"},
    {"GROUP_RANK", "1"},  {"GROUP_WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "4"},
    {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1234"},   {"TORCHELASTIC_RUN_ID", "x"}};
const Vars kSlurm = {
    {"SLURM_PROCID", "2"},  {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "1"},  {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
    {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "3"},        {"SLURM_STEP_NODELIST", "n[07-08]"}};

TEST(RankEnv, IsASingleProcessWhenNothingIsSet) {
  const RankEnv env = read({});
  EXPECT_EQ(env.rank, 0);
  EXPECT_EQ(env.world_size, 1);
  EXPECT_EQ(env.launcher, "");
  EXPECT_FALSE(env.mpi_started);
}

TEST(RankEnv, ReadsTorchrun) {
  const RankEnv env = read(kTorchrun);
  EXPECT_EQ(env.launcher, "torchrun");
  EXPECT_EQ(env.rank, 5);
  EXPECT_EQ(env.world_size, 8);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 4);
  EXPECT_EQ(env.node_rank, 1);
  EXPECT_EQ(env.node_count, 2);
  EXPECT_EQ(env.master_addr, "h");
  EXPECT_EQ(env.master_port, 1234);
}

TEST(RankEnv, ReadsMpirun) {
  const RankEnv env = read(kMpirun);
  EXPECT_EQ(env.launcher, "mpirun");
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.world_size, 4);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.node_rank, 1);
  EXPECT_EQ(env.node_count, 2);
  EXPECT_EQ(env.master_port, 0);
  EXPECT_TRUE(env.mpi_started);
}

TEST(RankEnv, ReadsASlurmStepAndNamesTheSamePortOnEveryRank) {
  const RankEnv env = read(kSlurm);
  EXPECT_EQ(env.launcher, "slurm");
  EXPECT_EQ(env.rank, 2);
  EXPECT_EQ(env.world_size, 3);
  EXPECT_EQ(env.local_rank, 0);
  EXPECT_EQ(env.local_world_size, 1);
  EXPECT_EQ(env.node_rank, 1);
  EXPECT_EQ(env.node_count, 2);
  EXPECT_EQ(env.master_addr, "n07");
  EXPECT_FALSE(env.mpi_started);
  EXPECT_EQ(env.master_port, read(kSlurm + Vars{{"SLURM_PROCID", "0"}}).master_port);
  EXPECT_NE(env.master_port, read(kSlurm + Vars{{"SLURM_STEP_ID", "4"}}).master_port);
  EXPECT_EQ(read(kSlurm + Vars{{"MASTER_PORT", "9"}}).master_port, 9);
}

TEST(RankEnv, TakesTheSizeOfAPmixWorldFromSlurm) {
  const RankEnv env = read(kSlurm + Vars{{"PMIX_RANK", "2"}});
  EXPECT_EQ(env.launcher, "slurm");
  EXPECT_EQ(env.world_size, 3);
  EXPECT_EQ(env.node_rank, 1);
  EXPECT_TRUE(env.mpi_started);
}

TEST(RankEnv, LetsTheInnermostLauncherWin) {
  // srun starts one torchrun per node: --node_rank $SLURM_PROCID.
  EXPECT_EQ(read(kSlurm + kTorchrun).rank, 5);
  // mpirun starts torchrun: the workers must not join the world of mpirun's processes.
  const RankEnv nested = read(kMpirun + kTorchrun);
  EXPECT_EQ(nested.rank, 5);
  EXPECT_FALSE(nested.mpi_started);
  // A container's own RANK and WORLD_SIZE, with mpirun inside.
  EXPECT_EQ(read(kMpirun + Vars{{"RANK", "0"}, {"WORLD_SIZE", "1"}}).rank, 3);
  // mpirun inside a batch job: its daemons run in a step of their own.
  EXPECT_EQ(read(kSlurm + kMpirun).world_size, 4);
  // A batch script is no rank of the step it is about to start.
  EXPECT_EQ(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).world_size, 1);
}

TEST(RankEnv, ReadsABareRankAsOneProcessPerMachine) {
  const RankEnv env = read({{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "pod-0"}});
  EXPECT_EQ(env.launcher, "environment");
  EXPECT_EQ(env.local_rank, 0);
  EXPECT_EQ(env.node_rank, 2);
  EXPECT_EQ(env.node_count, 3);
  EXPECT_EQ(env.master_addr, "pod-0");
}

TEST(RankEnv, KnowsCapstanItself) {
  const Vars vars = {
      {"CAPSTAN_LAUNCHER", "local"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}};
  EXPECT_EQ(read(vars).launcher, "capstan");
  EXPECT_EQ(read(vars).local_world_size, 2);
  EXPECT_EQ(read(vars).node_count, 1);
}

TEST(RankEnv, RefusesWhatMakesNoSense) {
  for (const Vars& bad : std::vector<Vars>{
           {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}},
           {{"RANK", "one"}, {"WORLD_SIZE", "2"}},
           {{"RANK", "0"}, {"LOCAL_RANK", "0"}},
           {{"RANK", "0"}, {"WORLD_SIZE", "0"}},
           {{"RANK", "-1"}, {"WORLD_SIZE", "2"}},
           {{"RANK", "0"}, {"WORLD_SIZE", "99999999999999"}},
           {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "4"}, {"LOCAL_WORLD_SIZE", "2"}},
           kSlurm + Vars{{"SLURM_STEP_NODELIST", "n[1-"}},
           kMpirun + Vars{{"OMPI_COMM_WORLD_SIZE", "3"}},
       }) {
    EXPECT_THROW(read(bad), ConfigError) << bad.begin()->first;
  }
  EXPECT_EQ(read({{"RANK", ""}, {"WORLD_SIZE", ""}}).world_size, 1);
}

}  // namespace
}  // namespace capstan
