#include "capstan/comm/nccl/nccl.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/comm/world.h"
#include "capstan/device/facts.h"
#include "tests/support/comm_cases.h"

namespace capstan::comm {
namespace {

TEST(Nccl, IsRefusedWithAReasonWhereARankHasNoGpuOfItsOwn) {
  RankEnv env;
  env.local_rank = 1000;
  env.local_world_size = 1001;
  EXPECT_THROW(start_nccl(env, std::chrono::seconds(1)), ConfigError);
}

// One GPU makes a world of one: NCCL refuses two ranks on one card.
TEST(Nccl, GetsEveryCollectiveRightOrderedAndNative) {
  if (device::list_devices().empty()) {
    GTEST_SKIP() << "no GPU: " << device::why_no_devices();
  }
  for (const bool ordered : {true, false}) {
    const auto world = make_world(
        RankEnv{}, {.backend = BackendKind::nccl, .reduce_in_rank_order = ordered}, start_nccl);
    EXPECT_EQ(world->backend(), BackendKind::nccl);
    for (const std::int64_t n : {1, 1000, 40'001}) {
      check_collectives(world->group(), n, at::Device(at::kCUDA, 0));
    }
    world->close();
  }
}

}  // namespace
}  // namespace capstan::comm
