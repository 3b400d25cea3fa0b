#include "capstan/shard/reduce.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"

namespace capstan::shard {
namespace {

Plan two_units(int world) {
  return make_plan({{.name = "a", .sizes = {66}}, {.name = "b", .sizes = {66}}},
                   {{.name = "a", .params = {0}}, {.name = "b", .params = {1}}},
                   {.shards = world, .persistence_threshold_elems = 0});
}

// One rank's reducer and what it needs.
struct Reducing {
  Reducing(comm::Group& group, Plan of, const ReduceSettings& settings)
      : plan(std::move(of)),
        pool(c10::kCPU, ledger),
        groups{group, group, std::vector<UnitGroups>(plan.units.size(), {.cut = &group})},
        reducer(plan, groups, pool, settings) {}

  Plan plan;
  store::Ledger ledger;
  store::Pool pool;
  ModelGroups groups;
  Reducer reducer;
};

at::Tensor grad_of(double value) { return at::full({66}, value, at::kFloat); }

void expect_sum(const Reducer& reducer, int unit, double value) {
  EXPECT_TRUE(reducer.sum(unit).eq(value).all().item<bool>()) << "unit " << unit;
}

TEST(Reducer, SumsOverRanksWhateverTheSchedule) {
  for (const ReduceSchedule schedule : {ReduceSchedule::at_step, ReduceSchedule::per_backward}) {
    for (const int world : {1, 2, 3}) {
      run_ranks(world, [&](comm::Group& group) {
        Reducing all(group, two_units(world), {.schedule = schedule});
        Reducer& reducer = all.reducer;
        EXPECT_FALSE(reducer.began());
        for (int backward = 0; backward < 2; ++backward) {
          reducer.begin_backward(/*sync=*/true);
          reducer.arrived(1, grad_of(1 + group.rank()));
          reducer.arrived(0, grad_of(10));
          reducer.end_backward();
        }
        reducer.finish();
        EXPECT_TRUE(reducer.began());
        expect_sum(reducer, 0, 20 * world);
        expect_sum(reducer, 1, world * (world + 1));
        reducer.clear();
        EXPECT_FALSE(reducer.began());
        EXPECT_EQ(all.ledger.now().total(), 0);
      });
    }
  }
}

// Unit b is reduced as soon as it has come; on rank 0 it comes once more, from another graph of the
// same backward. All ranks must then reduce it again, or they issue different collectives.
TEST(Reducer, ReducesAgainOnAllRanksWhatComesLateOnOne) {
  run_ranks(3, [](comm::Group& group) {
    Reducing all(group, two_units(3), {.schedule = ReduceSchedule::per_backward});
    Reducer& reducer = all.reducer;
    reducer.begin_backward(/*sync=*/true);
    reducer.arrived(1, grad_of(1));
    reducer.saw_several_graphs();
    if (group.rank() == 0) reducer.arrived(1, grad_of(4));
    reducer.arrived(0, grad_of(10));
    reducer.end_backward();
    reducer.finish();
    expect_sum(reducer, 0, 30);
    expect_sum(reducer, 1, 7);
  });
}

TEST(Reducer, KeepsGradientsLocalUntilASyncFollows) {
  run_ranks(2, [](comm::Group& group) {
    Reducing all(group, two_units(2), {.schedule = ReduceSchedule::per_backward});
    Reducer& reducer = all.reducer;
    for (const bool sync : {false, false, true}) {
      reducer.begin_backward(sync);
      reducer.arrived(1, grad_of(1));
      reducer.arrived(0, grad_of(2));
      reducer.end_backward();
      const std::int64_t reductions = group.counters()[comm::OpKind::reduce_scatter].calls;
      EXPECT_EQ(reductions > 0, sync);
    }
    reducer.finish();
    expect_sum(reducer, 0, 12);
    expect_sum(reducer, 1, 6);
    EXPECT_EQ(group.counters()[comm::OpKind::reduce_scatter].calls, 2);
  });
}

// Also what came after the last reduction.
TEST(Reducer, ReducesAtTheStepWhatNoSyncFollowed) {
  run_ranks(2, [](comm::Group& group) {
    Reducing all(group, two_units(2), {.schedule = ReduceSchedule::per_backward});
    Reducer& reducer = all.reducer;
    for (const bool sync : {true, false}) {
      reducer.begin_backward(sync);
      reducer.arrived(1, grad_of(1));
      reducer.arrived(0, grad_of(2));
      reducer.end_backward();
    }
    reducer.finish();
    expect_sum(reducer, 0, 8);
    expect_sum(reducer, 1, 4);
  });
}

// 256 + 1 is 256 in bf16.
TEST(Reducer, AddsGradientsOf16BitsInFp32) {
  for (const int world : {1, 2}) {
    run_ranks(world, [world](comm::Group& group) {
      Reducing all(group,
                   make_plan({{.name = "a", .sizes = {66}, .dtype = DType::bf16}},
                             {{.name = "a", .params = {0}}},
                             {.shards = world, .persistence_threshold_elems = 0}),
                   {.schedule = ReduceSchedule::at_step});
      Reducer& reducer = all.reducer;
      for (const double value : {256.0, 1.0}) {
        reducer.begin_backward(/*sync=*/true);
        reducer.arrived(0, grad_of(value).to(at::kBFloat16));
        reducer.end_backward();
      }
      reducer.finish();
      EXPECT_TRUE(reducer.sum(0).narrow(0, 0, 30).eq(257 * world).all().item<bool>());
    });
  }
}

}  // namespace
}  // namespace capstan::shard
