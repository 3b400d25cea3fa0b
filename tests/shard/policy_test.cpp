#include "capstan/shard/policy.h"

#include <string>

#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::shard {
namespace {

TEST(Policy, StagesAreValues) {
  EXPECT_EQ(policy_for({.stage = 0}), (Policy{Gather::never, ReduceSchedule::at_step}));
  EXPECT_EQ(policy_for({.stage = 1}), (Policy{Gather::per_step, ReduceSchedule::at_step}));
  EXPECT_EQ(policy_for({.stage = 2}), (Policy{Gather::per_step, ReduceSchedule::per_backward}));
  EXPECT_EQ(policy_for({.stage = 3}), (Policy{Gather::per_use, ReduceSchedule::per_backward}));
  EXPECT_EQ(policy_for({.stage = 3, .reduce_schedule = ReduceSchedule::at_step}).reduce,
            ReduceSchedule::at_step);
  EXPECT_THROW(policy_for({.stage = 4}), ConfigError);
}

// Of the optimizer's state, the gradients, the parameters.
std::string sharded_at(int stage) {
  const Policy policy = policy_for({.stage = stage});
  std::string kinds;
  if (policy.shards_optimizer()) kinds += 'o';
  if (stage_shards_gradients(stage)) kinds += 'g';
  if (policy.shards_params()) kinds += 'p';
  return kinds;
}

TEST(Policy, EveryStageShardsOneKindMore) {
  EXPECT_EQ(sharded_at(0), "");
  EXPECT_EQ(sharded_at(1), "o");
  EXPECT_EQ(sharded_at(2), "og");
  EXPECT_EQ(sharded_at(3), "ogp");
}

}  // namespace
}  // namespace capstan::shard
