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

// Of the optimizer's state, the gradients between backwards, the parameters between uses.
std::string sharded(const Policy& policy) {
  std::string kinds;
  if (policy.shards_optimizer()) kinds += 'o';
  if (policy.shards_gradients()) kinds += 'g';
  if (policy.shards_params()) kinds += 'p';
  return kinds;
}

TEST(Policy, EveryStageShardsOneKindMore) {
  EXPECT_EQ(sharded(policy_for({.stage = 0})), "");
  EXPECT_EQ(sharded(policy_for({.stage = 1})), "o");
  EXPECT_EQ(sharded(policy_for({.stage = 2})), "og");
  EXPECT_EQ(sharded(policy_for({.stage = 3})), "ogp");
}

TEST(Policy, GradientsStayWholeUntilTheStepWhereTheyAreReducedThere) {
  EXPECT_EQ(sharded(policy_for({.stage = 2, .reduce_schedule = ReduceSchedule::at_step})), "o");
  EXPECT_EQ(sharded(policy_for({.stage = 1, .reduce_schedule = ReduceSchedule::per_backward})),
            "og");
  EXPECT_EQ(sharded(policy_for({.stage = 0, .reduce_schedule = ReduceSchedule::per_backward})), "");
}

}  // namespace
}  // namespace capstan::shard
