#include "capstan/shard/gather.h"

#include <cstring>
#include <stdexcept>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "capstan/store/tensor.h"
#include "tests/support/run_ranks.h"

namespace capstan::shard {
namespace {

// Three units of one parameter each, all of its elements the unit's index.
struct ThreeUnits {
  explicit ThreeUnits(comm::Group& group, bool on_host = false)
      : plan(make_plan({{.name = "a", .sizes = {100}},
                        {.name = "b", .sizes = {100}},
                        {.name = "c", .sizes = {100}}},
                       {{.name = "a", .params = {0}},
                        {.name = "b", .params = {1}},
                        {.name = "c", .params = {2}}},
                       {.shards = group.size(), .persistence_threshold_elems = 0})),
        pool(c10::kCPU, ledger),
        host(c10::kCPU, host_ledger),
        groups(3, {.cut = &group}) {
    for (int i = 0; i < 3; ++i) {
      params.push_back(at::full({100}, i, at::kFloat));
      units.emplace_back(plan.units[static_cast<std::size_t>(i)], plan.params,
                         std::vector<at::Tensor>{params.back()},
                         UnitMemory{pool, on_host ? host : pool,
                                    on_host ? store::Placement::host : store::Placement::device},
                         UnitRole{.rank = group.rank()});
      units.back().release();
    }
  }

  Plan plan;
  store::Ledger ledger;
  store::Pool pool;
  store::Ledger host_ledger;
  store::Pool host;
  std::vector<at::Tensor> params;
  std::vector<Unit> units;
  std::vector<UnitGroups> groups;
};

constexpr GatherLimits kNoPrefetch{.max_live_bytes = 1 << 20};

TEST(Gatherer, MakesUnitsWholeWhileTheyAreNeeded) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](comm::Group& group) {
      ThreeUnits model(group);
      Gatherer gatherer(model.units, model.groups, kNoPrefetch);
      const std::vector<int> both = {0, 2};
      gatherer.need(both);
      EXPECT_TRUE(model.params[2].eq(2).all().item<bool>());
      EXPECT_EQ(model.params[2].numel(), 100);
      EXPECT_EQ(model.params[1].numel(), 0);
      gatherer.done(both);
      EXPECT_EQ(model.params[2].numel(), 0);
      EXPECT_EQ(gatherer.live_bytes(), 0);
    });
  }
}

// A home whose shards must be brought, and one of which cannot be.
class FailingHome final : public store::Home {
 public:
  explicit FailingHome(ThreeUnits& model) : model_(model) {}
  store::Pool& pool() override { return model_.pool; }
  bool in_place() const override { return false; }
  void ahead(std::vector<store::Spans> next) override { asked = std::move(next); }
  store::Taken take(const store::Spans& spans) override {
    if (fails && same(spans, 1)) throw std::runtime_error("no memory");
    const auto bytes = static_cast<std::int64_t>(spans[0].size());
    c10::DataPtr memory = model_.pool.take(bytes, store::MemoryKind::parameters);
    std::memcpy(memory.get(), spans[0].data(), spans[0].size());
    return {.at = {static_cast<std::byte*>(memory.get())}, .memory = std::move(memory)};
  }
  void behind() override {}
  void settle() override { ++settled; }
  void write_back(Which /*which*/) override {}

  bool same(const store::Spans& spans, int unit) const {
    return spans[0].data() ==
           store::span_of(model_.units[static_cast<std::size_t>(unit)].shard()).data();
  }

  bool fails = false;
  int settled = 0;
  std::vector<store::Spans> asked;

 private:
  ThreeUnits& model_;
};

// As when memory is out in the middle of it, and the program goes on.
TEST(Gatherer, LeavesNothingPinnedWhenItThrows) {
  run_ranks(2, [](comm::Group& group) {
    ThreeUnits model(group, /*on_host=*/true);
    FailingHome home(model);
    store::HostTraffic traffic(c10::kCPU);
    Gatherer gatherer(model.units, model.groups, kNoPrefetch, {.home = &home, .traffic = &traffic});
    home.fails = true;
    const std::vector<int> all = {0, 1, 2};
    EXPECT_THROW(gatherer.need(all), std::runtime_error);
    EXPECT_THROW(gatherer.pin(1), std::runtime_error);
    gatherer.end_pass();
    for (const Unit& unit : model.units) EXPECT_EQ(unit.state(), UnitState::sharded);
    EXPECT_EQ(gatherer.live_bytes(), 0);
    home.fails = false;
    gatherer.need(all);
    gatherer.need(all);
    gatherer.done(all);
    EXPECT_EQ(gatherer.live_bytes(), 3 * model.plan.units[0].whole_bytes());  // needed once more
    EXPECT_TRUE(model.params[1].eq(1).all().item<bool>());
    gatherer.done(all);
    EXPECT_EQ(gatherer.live_bytes(), 0);
  });
}

// Shards that are far come nearer in the order of the last pass, and are forgotten at its end.
TEST(Gatherer, AsksTheHomeForWhatComesNext) {
  run_ranks(2, [](comm::Group& group) {
    ThreeUnits model(group, /*on_host=*/true);
    FailingHome home(model);
    store::HostTraffic traffic(c10::kCPU);
    Gatherer gatherer(model.units, model.groups, kNoPrefetch, {.home = &home, .traffic = &traffic});
    for (int pass = 0; pass < 2; ++pass) {
      for (const int unit : {2, 0, 1}) {
        gatherer.need({&unit, 1});
        if (pass == 1 && unit == 2) {
          ASSERT_EQ(home.asked.size(), 2U);
          EXPECT_TRUE(home.same(home.asked[0], 0));
          EXPECT_TRUE(home.same(home.asked[1], 1));
        }
        gatherer.done({&unit, 1});
      }
      gatherer.end_pass();
      EXPECT_EQ(home.settled, pass + 1);
    }
  });
}

TEST(Gatherer, LendsMemoryThatOutlivesTheRelease) {
  run_ranks(2, [](comm::Group& group) {
    ThreeUnits model(group);
    Gatherer gatherer(model.units, model.groups, kNoPrefetch);
    gatherer.lend(1);
    const at::Tensor kept = model.params[1].view(-1);
    gatherer.unpin(1);
    EXPECT_EQ(model.params[1].numel(), 0);
    EXPECT_TRUE(kept.eq(1).all().item<bool>());
  });
}

// What was kept for a use that did not come, and what was gathered ahead for one: its gather is
// ended before its memory goes.
TEST(Gatherer, ReleasesEverythingAtTheEndOfAPass) {
  run_ranks(2, [](comm::Group& group) {
    ThreeUnits model(group);
    Gatherer gatherer(
        model.units, model.groups,
        {.prefetch_bytes = 1 << 20, .max_live_bytes = 1 << 20, .max_reuse_bytes = 1 << 20});
    const auto use = [&](int unit) {
      gatherer.need({&unit, 1});
      gatherer.done({&unit, 1});
    };
    for (const int unit : {0, 1, 0, 2}) use(unit);
    gatherer.end_pass();
    EXPECT_EQ(gatherer.live_bytes(), 0);
    for (const Unit& unit : model.units) EXPECT_EQ(unit.state(), UnitState::sharded);
    const auto gathers = [&group] { return group.counters()[comm::OpKind::all_gather].calls; };
    const std::int64_t before = gathers();
    use(0);  // the others are on their way
    EXPECT_EQ(model.units[2].state(), UnitState::gathering);
    gatherer.end_pass();
    EXPECT_EQ(gathers() - before, 3);
    EXPECT_EQ(gatherer.live_bytes(), 0);
  });
}

// What is used again soon stays, but goes where the limit wants room for what is needed now: first
// what is needed last.
TEST(Gatherer, EvictsWhatIsUsedLastWhenTheLimitIsReached) {
  run_ranks(2, [](comm::Group& group) {
    ThreeUnits model(group);
    const std::int64_t unit_bytes = model.plan.units[0].whole_bytes();
    Gatherer gatherer(model.units, model.groups,
                      {.max_live_bytes = 2 * unit_bytes, .max_reuse_bytes = 1 << 20});
    const auto use = [&](int unit) {
      gatherer.need({&unit, 1});
      gatherer.done({&unit, 1});
      EXPECT_LE(gatherer.live_bytes(), 2 * unit_bytes);
    };
    const auto pass = [&] {
      for (const int unit : {0, 1, 2, 1, 0}) use(unit);
    };
    pass();  // recorded
    gatherer.end_pass();
    use(0);
    use(1);
    EXPECT_EQ(model.units[0].state(), UnitState::whole);  // used again in this pass
    use(2);
    EXPECT_EQ(model.units[0].state(), UnitState::sharded);  // unit 1 comes first
    EXPECT_EQ(model.units[1].state(), UnitState::whole);
  });
}

}  // namespace
}  // namespace capstan::shard
