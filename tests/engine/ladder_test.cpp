#include "capstan/engine/ladder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::engine {
namespace {

using store::Placement;
using testing::ElementsAre;
using testing::HasSubstr;

// Where a run in fp32 ends up that takes every step that is offered to it.
std::vector<std::string> steps_down(Options options, const Ground& ground) {
  std::vector<std::string> taken;
  for (const Rung rung : ladder()) {
    const auto next = take(rung, options, ground);
    if (!next) continue;
    options = *next;
    taken.emplace_back(to_string(rung));
  }
  return taken;
}

Options large_batches() {
  Options options;
  options.batch.micro_samples = 8;
  return options;
}

TEST(Ladder, HasEveryStepThatUsersKnow) {
  EXPECT_THAT(steps_down(large_batches(), {.ranks = 4}),
              ElementsAre("micro-batch 1", "recompute", "stage 2", "stage 2 + offload optimizer",
                          "stage 3", "stage 3 + offload parameters", "no prefetch, no reuse",
                          "16 bits", "both on disks"));
}

TEST(Ladder, LeavesOutWhatSavesNothing) {
  // One rank has all shards; host and device are one memory there.
  EXPECT_THAT(steps_down(large_batches(), {.ranks = 1, .on_gpu = false}),
              ElementsAre("micro-batch 1", "recompute", "16 bits", "both on disks"));
}

TEST(Ladder, OffloadsTheOptimizerLastWhereOnlyParametersAreAway) {
  Options options;
  options.shard.stage = 3;
  options.store.params.placement = Placement::host;
  const auto next = take(Rung::offload_both, options, {.ranks = 2});
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->store.optimizer.placement, Placement::host);
}

TEST(Ladder, KeepsTheSamplesOfAStep) {
  Options options = large_batches();
  options.batch.accumulation_steps = 3;
  const auto next = take(Rung::micro_batch, options, {});
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->batch.micro_samples, 1);
  EXPECT_EQ(next->batch.accumulation_steps, 24);
}

TEST(NextSaving, NamesOptionsAsTheUserKnowsThem) {
  Options options;
  options.recompute.enabled = true;
  EXPECT_EQ(next_saving(options, {.ranks = 2}), "shard the gradients: shard.stage 2");
  options.names.of_fields = {{"shard.stage", "my.stage"},
                             {"store.optimizer.placement", "my_optimizer"},
                             {"host", "cpu"},
                             {"shard.max_reuse_bytes", "my_reuse"},
                             {"shard.prefetch_bytes", "my_prefetch"}};
  EXPECT_EQ(next_saving(options, {.ranks = 2}), "shard the gradients: my.stage 2");
  options.shard.stage = 2;
  EXPECT_EQ(next_saving(options, {.ranks = 2}),
            "move the optimizer to host memory: my.stage 2 and my_optimizer \"cpu\"");
  options.shard.stage = 3;
  EXPECT_EQ(next_saving(options, {.ranks = 2, .on_gpu = false}),
            "keep fewer units whole: lower my_reuse and my_prefetch, to 0 if need be");
}

TEST(NextSaving, TellsWhoRecomputesAlreadyTheStepAfter) {
  const std::string said = next_saving({}, {.ranks = 2});
  EXPECT_THAT(said, HasSubstr("activation checkpointing"));
  EXPECT_THAT(said, HasSubstr("stage 2"));
}

TEST(NextSaving, EndsWithMoreRanksAndDisks) {
  Options options;
  options.recompute.enabled = true;
  options.precision.params = DType::bf16;
  options.shard = {.stage = 3, .prefetch_bytes = 0, .max_reuse_bytes = 0};
  options.store.optimizer.placement = options.store.params.placement = Placement::host;
  EXPECT_THAT(next_saving(options, {.ranks = 2}), HasSubstr("more ranks"));
  EXPECT_THAT(next_saving(options, {.ranks = 2}), HasSubstr("nvme"));
  options.store.optimizer.placement = options.store.params.placement = Placement::nvme;
  EXPECT_EQ(next_saving(options, {.ranks = 2}), "use more ranks: every shard gets smaller");
}

}  // namespace
}  // namespace capstan::engine
