#include "capstan/shard/updates.h"

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "capstan/shard/adopt.h"
#include "tests/shard/ground_fixture.h"
#include "tests/support/run_ranks.h"
#include "tests/support/thread_groups.h"

namespace capstan::shard {
namespace {

using test::GroundOfUnits;

Settings settings_of(int stage, store::Placement states) {
  Settings settings{.policy = policy_for({.stage = stage})};
  settings.states.moment_names = {"exp_avg"};
  settings.host.homes.optimizer.placement = states;
  return settings;
}

// One rank's units and updates.
struct Updating {
  Updating(comm::Group& group, const Settings& settings)
      : on(group, 2, settings),
        mesh(layout::Mesh({.shard = group.size()}, group.size()), group, nullptr) {
    for (int i = 0; i < 2; ++i) {
      params.push_back(at::full({GroundOfUnits::kElems}, i, at::kFloat).set_requires_grad(true));
    }
    ModelView view;
    view.params = params;
    Adopted adopted = adopt(view, on.ground, mesh);
    units = std::move(adopted.units);
    updates = std::make_unique<Updates>(on.ground, units, std::move(adopted.states));
  }

  // As an optimizer would: the master first, then its value as a parameter.
  void set(int unit, double value) {
    UnitStates& states = updates->states(unit);
    states.master.fill_(value);
    if (updates->sends_values(unit)) {
      at::Tensor values = updates->new_values(unit, states.master.numel());
      values.fill_(value);
      updates->send_values(unit, 0, std::move(values));
    } else if (!states.master_is_params()) {
      states.params.copy_(states.master);
    }
  }

  GroundOfUnits on;
  comm::MeshGroups mesh;
  std::vector<at::Tensor> params;
  std::vector<Unit> units;
  std::unique_ptr<Updates> updates;
};

bool all_are(const at::Tensor& values, double value) { return values.eq(value).all().item<bool>(); }

TEST(Updates, ReachEveryRankWhereverTheStatesLive) {
  for (const int stage : {1, 2}) {
    for (const auto where : {store::Placement::device, store::Placement::host}) {
      for (const int world : {1, 2, 3}) {
        run_ranks(world, [&](comm::Group& group) {
          Updating all(group, settings_of(stage, where));
          EXPECT_EQ(all.updates->on_host(1), where == store::Placement::host);
          for (const int unit : all.updates->order()) {
            all.set(unit, 5 + unit);
            all.updates->publish(unit);
          }
          all.updates->finish();
          EXPECT_TRUE(all_are(all.params[0].detach(), 5));
          EXPECT_TRUE(all_are(all.params[1].detach(), 6));
        });
      }
    }
  }
}

// A late one is waited for where its unit is used, and by whoever wants everything.
TEST(Updates, MayComeAfterTheStep) {
  Settings settings = settings_of(3, store::Placement::host);
  settings.host.late_updates = true;
  run_ranks(2, [&](comm::Group& group) {
    Updating all(group, settings);
    EXPECT_TRUE(all.updates->can_be_late(0));
    std::promise<void> go_on;
    auto allowed = go_on.get_future().share();
    all.updates->start_late({0, 1}, [&](int unit) {
      if (unit == 1) allowed.wait();
      all.set(unit, 7);
    });
    all.updates->await(0);
    EXPECT_TRUE(all_are(all.units[0].shard(), 7));
    go_on.set_value();
    all.updates->settle_late();
    EXPECT_TRUE(all_are(all.units[1].shard(), 7));
  });
}

// They read the gradients that the next backward replaces.
TEST(Updates, AreOverWhenTheNextBackwardBegins) {
  Settings settings = settings_of(3, store::Placement::host);
  settings.host.late_updates = true;
  run_ranks(1, [&](comm::Group& group) {
    Updating all(group, settings);
    std::atomic<int> updated = 0;
    all.updates->start_late({0, 1}, [&](int) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      ++updated;
    });
    all.updates->backward_begins();
    EXPECT_EQ(updated, 2);
  });
}

// What an early one made is the state only once somebody keeps it.
TEST(Updates, MadeInBackwardTakeThePlaceOfTheOldState) {
  Settings settings = settings_of(3, store::Placement::host);
  settings.host.early_bytes = 1 << 20;
  run_ranks(1, [&](comm::Group& group) {
    Updating all(group, settings);
    Updates& updates = *all.updates;
    updates.early()->open([&](int unit, const UpdateQueue::GoOn&) {
      FreshStates fresh = updates.make_fresh(unit);
      fresh.master.fill_(9);
      fresh.moments[0].fill_(3);
      return fresh;
    });
    updates.gradient_complete(1, {});
    while (!updates.made_early(1)) std::this_thread::yield();
    updates.gradient_complete(0, {});
    while (!updates.made_early(0)) std::this_thread::yield();
    updates.gradient_changes(0);
    updates.early()->close(/*keep=*/true);
    EXPECT_TRUE(all_are(updates.states(1).moments[0], 0));
    EXPECT_TRUE(updates.keep_early(1));
    EXPECT_TRUE(all_are(updates.states(1).moments[0], 3));
    EXPECT_TRUE(all_are(all.units[1].shard(), 9));
    EXPECT_FALSE(updates.keep_early(1));
    EXPECT_FALSE(updates.keep_early(0));
  });
}

}  // namespace
}  // namespace capstan::shard
