#include "capstan/shard/gradients.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "tests/shard/ground_fixture.h"
#include "tests/support/run_ranks.h"

namespace capstan::shard {
namespace {

using test::GroundOfUnits;

struct Seen final : GradWatcher {
  void leaves(int unit, const at::Tensor& sum, bool alone) override {
    units.push_back(alone ? unit : -1 - unit);
    last = sum[0].item<float>();
  }
  std::vector<int> units;  // negative: not the first of its unit
  float last = 0;
};

// One rank's gradients.
struct Summing {
  Summing(comm::Group& group, const Settings& settings)
      : on(group, 2, settings),
        updates(on.ground, {}, std::vector<UnitStates>(2)),
        gradients(on.ground, updates, &seen) {}

  void backward(double first, double second, bool sync = true) {
    gradients.begin_backward(sync);
    gradients.arrived(1, at::full({GroundOfUnits::kElems}, second, at::kFloat));
    gradients.arrived(0, at::full({GroundOfUnits::kElems}, first, at::kFloat));
    gradients.end_backward();
  }
  double sum(int unit) { return gradients.shard(unit)[0].item<float>(); }

  GroundOfUnits on;
  Seen seen;
  Updates updates;
  Gradients gradients;
};

Settings settings_of(store::Placement states) {
  Settings settings{.policy = policy_for({.stage = 2})};
  settings.reduce.schedule = ReduceSchedule::per_backward;
  settings.host.homes.optimizer.placement = states;
  return settings;
}

TEST(Gradients, AreSummedOverRanksAndBackwardsWhereverTheyLive) {
  for (const auto where : {store::Placement::device, store::Placement::host}) {
    for (const int world : {1, 2, 3}) {
      run_ranks(world, [&](comm::Group& group) {
        Summing all(group, settings_of(where));
        const double ranks = world * (world + 1) / 2.0;
        for (int step = 0; step < 2; ++step) {
          for (int i = 0; i < 3; ++i) all.backward(1 + group.rank(), 10);
          all.gradients.finish();
          EXPECT_EQ(all.sum(0), 3 * ranks);
          EXPECT_EQ(all.sum(1), 30 * world);
          all.gradients.clear();
        }
        EXPECT_EQ(all.on.places.device_ledger().now()[store::MemoryKind::gradients], 0);
      });
    }
  }
}

// Somebody counts them while they are still on the device.
TEST(Gradients, TellWhenTheyLeaveTheDevice) {
  run_ranks(2, [](comm::Group& group) {
    Summing all(group, settings_of(store::Placement::host));
    all.backward(1, 2);
    all.gradients.finish();
    EXPECT_THAT(all.seen.units, testing::ElementsAre(1, 0));
    EXPECT_EQ(all.seen.last, 2);
    all.backward(1, 2);
    all.gradients.finish();
    EXPECT_THAT(all.seen.units, testing::ElementsAre(1, 0, -2, -1));
    all.gradients.clear();
    all.backward(1, 2);
    all.gradients.finish();
    EXPECT_EQ(all.seen.units.back(), 0);
  });
}

TEST(Gradients, NameTheParametersThatGotNone) {
  Settings settings = settings_of(store::Placement::device);
  settings.unused = UnusedParameters::error;
  run_ranks(1, [&](comm::Group& group) {
    Summing all(group, settings);
    all.gradients.begin_backward(/*sync=*/true);
    all.gradients.arrived(1, at::full({GroundOfUnits::kElems}, 1, at::kFloat));
    all.gradients.end_backward();
    try {
      all.gradients.finish();
      FAIL() << "not told";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("1 trainable parameter got no gradient: a"));
    }
  });
}

}  // namespace
}  // namespace capstan::shard
