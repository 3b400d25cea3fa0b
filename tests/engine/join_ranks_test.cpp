#include "capstan/engine/join_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/comm/nccl/nccl.h"
#include "capstan/engine/engine.h"
#include "tests/engine/engine_fixture.h"

namespace capstan::engine {
namespace {

using comm::BackendKind;
using testing::HasSubstr;

const c10::Device kCpu(c10::kCPU);
const c10::Device kGpu(c10::kCUDA, 0);

TEST(JoinRanks, OverNcclOnGpusAndOverMpiOnCpus) {
  EXPECT_EQ(backend_for(kGpu, 2, {}, true), BackendKind::nccl);
  EXPECT_EQ(backend_for(kGpu, 1, {}, true), std::nullopt);
  EXPECT_EQ(backend_for(kGpu, 1, {}, false), std::nullopt);
  for (const bool has_nccl : {false, true}) {
    EXPECT_EQ(backend_for(kCpu, 2, {}, has_nccl), BackendKind::mpi);
    EXPECT_EQ(backend_for(kCpu, 1, {}, has_nccl), BackendKind::loopback);
  }
}

TEST(JoinRanks, OverWhatWasAskedFor) {
  Options options;
  for (const BackendKind asked : {BackendKind::mpi, BackendKind::nccl}) {
    options.comm.backend = asked;
    EXPECT_EQ(backend_for(kGpu, 2, options, false), asked);
    EXPECT_EQ(backend_for(kCpu, 2, options, true), asked);
  }
}

TEST(JoinRanks, RefusesSeveralGpusWithoutNcclAndSaysWhatToDo) {
  Options options;
  options.names.of_fields = {{"comm.backend", "my.backend"}};
  try {
    (void)backend_for(kGpu, 4, options, false);
    FAIL() << "GPUs train over MPI and nobody says so";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.info().what, HasSubstr("cuda:0, one of 4 ranks"));
    EXPECT_THAT(error.info().fix, HasSubstr("&capstan::comm::start_nccl"));
    EXPECT_THAT(error.info().fix, HasSubstr("my.backend to mpi"));
  }
}

std::unique_ptr<comm::Nccl> refuse(const RankEnv&, std::chrono::milliseconds) {
  throw ConfigError({.what = "NCCL was started", .where = "test", .fix = "none"});
}

// On a machine with or without GPUs: a model on the CPU needs no NCCL.
TEST(JoinRanks, AnEngineJoinsByTheDeviceOfItsModel) {
  test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
  Engine engine(model, test::fp32_options(3), {.start_nccl = &refuse});
  test::plain_micro(engine, model, 1);
  EXPECT_TRUE(engine.step().applied);
  engine.close();
  Options asks = test::fp32_options(3);
  asks.comm.backend = BackendKind::nccl;
  test::SmallModel other(test::kWidth, test::kBlocks, test::kClasses);
  EXPECT_THROW(Engine(other, asks, {.start_nccl = &refuse}), ConfigError);
}

}  // namespace
}  // namespace capstan::engine
