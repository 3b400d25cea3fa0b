// Ranks that were not given the same options: told at start, on every rank, before they train
// different models or wait for each other.
#include "capstan/engine/agreement.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "tests/engine/engine_fixture.h"

namespace capstan::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// What each of three ranks is told when the last one's options are changed.
void expect_told(const std::function<void(engine::Options&)>& change, const std::string& what) {
  run_ranks(3, [&](comm::Group& group) {
    engine::Options options = fp32_options(2);
    if (group.rank() == 2) change(options);
    SmallModel model(kWidth, kBlocks, kClasses);
    try {
      const Engine engine(model, options, {.group = &group});
      ADD_FAILURE() << "no error about " << what;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("ranks 0 and 2 do not have the same configuration"),
                                      HasSubstr(what)));
    }
  });
}

TEST(Agreement, IsNeededOnAllThatChangesNumbersOrCollectives) {
  expect_told([](engine::Options& o) { o.shard.stage = 3; },
              "shard.stage is 2 on rank 0, and 3 on rank 2");
  expect_told([](engine::Options& o) { o.shard.stage = 0; }, "shard.stage is 2 on rank 0");
  expect_told([](engine::Options& o) { o.gradient_clipping = 0.5; },
              "gradient_clipping is 0 on rank 0, and 0.5 on rank 2");
  expect_told([](engine::Options& o) { o.optimizer->hyper.lr = 0.5; },
              "optimizer is adamw lr 0.01");
  expect_told([](engine::Options& o) { o.optimizer->kind = optim::Kind::lion; }, "and lion lr");
  expect_told([](engine::Options& o) { o.optimizer->groups = {{{"*bias"}, {}}}; }, "*bias");
  expect_told([](engine::Options& o) { o.precision.params = DType::bf16; }, "parameters bf16");
  expect_told([](engine::Options& o) { o.precision.reduce = DType::bf16; }, "on the wire bf16");
  expect_told([](engine::Options& o) { o.batch.accumulation_steps = 2; }, "2 backwards");
  expect_told([](engine::Options& o) { o.comm.reduce_op = comm::ReduceOp::sum; }, "sum");
  expect_told([](engine::Options& o) { o.shard.reduce_schedule = shard::ReduceSchedule::at_step; },
              "shard.reduce_schedule is per_backward on rank 0, and at_step on rank 2");
  expect_told([](engine::Options& o) { o.schedule = schedule::WarmupLr{.num_steps = 7}; },
              "schedule");
}

TEST(Agreement, SaysWhatTheCallerCallsIt) {
  run_ranks(2, [](comm::Group& group) {
    const std::string lr = group.rank() == 0 ? "0.001" : "0.002";
    try {
      engine::check_agreement(group, c10::kCPU, {{"a", "1"}, {"optimizer.params.lr", lr}});
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("optimizer.params.lr is 0.001 on rank 0, and 0.002 on rank 1"));
    }
    engine::check_agreement(group, c10::kCPU, {{"a", "1"}});  // the group lives
  });
}

}  // namespace
}  // namespace capstan::test
