#include "capstan/shard/use_trace.h"

#include <array>
#include <vector>

#include <gmock/gmock.h>

namespace capstan::shard {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int> upcoming(const UseTrace& trace) {
  return {trace.upcoming().begin(), trace.upcoming().end()};
}

void pass(UseTrace& trace, const std::vector<int>& uses) {
  for (const int unit : uses) trace.use(unit);
  trace.end_pass();
}

TEST(UseTrace, KnowsNothingInTheFirstPass) {
  UseTrace trace;
  trace.use(0);
  EXPECT_THAT(upcoming(trace), IsEmpty());
}

TEST(UseTrace, FollowsTheLastPass) {
  UseTrace trace;
  pass(trace, {0, 1, 2, 2, 1, 0});
  EXPECT_THAT(upcoming(trace), ElementsAre(0, 1, 2, 2, 1, 0));
  trace.use(0);
  trace.use(1);
  EXPECT_THAT(upcoming(trace), ElementsAre(2, 2, 1, 0));
  EXPECT_EQ(trace.surprises(), 0);
}

TEST(UseTrace, FindsItsPlaceAgainAfterASkippedUnit) {
  UseTrace trace;
  pass(trace, {0, 1, 2, 3});
  trace.use(0);
  trace.use(2);
  EXPECT_THAT(upcoming(trace), ElementsAre(3));
  EXPECT_EQ(trace.surprises(), 1);
}

TEST(UseTrace, GivesUpUntilItRecognisesSomething) {
  UseTrace trace;
  pass(trace, {0, 1, 2});
  trace.use(7);
  EXPECT_THAT(upcoming(trace), IsEmpty());
  trace.use(1);
  EXPECT_THAT(upcoming(trace), ElementsAre(2));
}

TEST(UseTrace, AnEmptyPassForgetsNothing) {
  UseTrace trace;
  pass(trace, {4, 5});
  trace.end_pass();
  EXPECT_THAT(upcoming(trace), ElementsAre(4, 5));
}

TEST(UseTrace, DistanceCountsEachUnitBetweenOnce) {
  UseTrace trace;
  const std::array<std::int64_t, 3> weights = {1, 10, 100};
  pass(trace, {0, 1, 2, 1, 2, 0});
  trace.use(0);
  EXPECT_EQ(trace.distance(0, weights), 110);
  EXPECT_EQ(trace.distance(1, weights), 0);
  trace.use(1);
  trace.use(2);
  trace.use(1);
  trace.use(2);
  EXPECT_EQ(trace.distance(1, weights), std::nullopt);
}

}  // namespace
}  // namespace capstan::shard
