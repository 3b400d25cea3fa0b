#include "capstan/recompute/rng_state.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace capstan::recompute {
namespace {

TEST(RngReplay, DrawsTheSameNumbersAgainAndLeavesNoTrace) {
  at::manual_seed(7);
  const RngState start = RngState::of_devices({});
  const at::Tensor first = at::rand({5});
  at::Tensor replayed;
  const RngState before_replay = start.refreshed();
  const at::Tensor next = at::rand({5});
  before_replay.restore();
  {
    const RngReplay replay(start);
    replayed = at::rand({5});
  }
  EXPECT_TRUE(at::equal(first, replayed));
  EXPECT_TRUE(at::equal(at::rand({5}), next));
  EXPECT_FALSE(at::equal(first, next));
}

}  // namespace
}  // namespace capstan::recompute
