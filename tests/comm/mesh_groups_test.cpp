#include "capstan/comm/mesh_groups.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "tests/support/comm_cases.h"
#include "tests/support/run_ranks.h"
#include "tests/support/thread_groups.h"

namespace capstan::comm {
namespace {

using layout::Axes;
using layout::Axis;
using layout::Mesh;

void on_mesh(const layout::MeshSizes& sizes, int world,
             const std::function<void(MeshGroups&)>& act) {
  ThreadMeetings meetings;
  run_ranks(world, [&](Group& group) {
    ThreadGroups maker(meetings, group.rank());
    MeshGroups groups(Mesh(sizes, world), group, &maker);
    act(groups);
  });
}

TEST(MeshGroups, AreTheGroupsOfTheMesh) {
  on_mesh({.replica = 2, .shard = 3}, 6, [](MeshGroups& groups) {
    for (const Axes axes : {Axes(Axis::shard), Axes(Axis::replica)}) {
      Group& group = groups.over(axes);
      EXPECT_EQ(group.size(), groups.mesh().size(axes));
      EXPECT_EQ(group.rank(), groups.place(axes));
      check_collectives(group, 100);
      const at::Tensor mine = at::full({1}, groups.all().rank(), at::kLong);
      const at::Tensor all = at::empty({group.size()}, at::kLong);
      group.all_gather(all, mine).wait();
      const std::vector<int> expected = groups.mesh().group(axes, groups.all().rank());
      for (int i = 0; i < group.size(); ++i) {
        EXPECT_EQ(all[i].item<int>(), expected[static_cast<std::size_t>(i)]);
      }
    }
  });
}

TEST(MeshGroups, AreMadeOnceAndOnlyWhereTheyAreNew) {
  on_mesh({.replica = 2, .shard = 2}, 4, [](MeshGroups& groups) {
    EXPECT_EQ(&groups.over(layout::kDataAxes), &groups.all());
    EXPECT_EQ(&groups.over({Axis::shard, Axis::sequence}), &groups.over(Axis::shard));
    EXPECT_EQ(groups.over(Axis::tensor).size(), 1);
    EXPECT_EQ(groups.over(Axes()).size(), 1);
    groups.over(Axis::tensor).barrier().wait();
  });
}

TEST(MeshGroups, CountTrafficByAxes) {
  on_mesh({.replica = 2, .shard = 2}, 4, [](MeshGroups& groups) {
    groups.over(Axis::replica).all_reduce(at::ones({10})).wait();
    groups.all().all_reduce(at::ones({7})).wait();
    std::int64_t seen = 0;
    for (const AxesTraffic& traffic : groups.traffic()) {
      const std::int64_t elems = traffic.counters[OpKind::all_reduce].elems;
      const std::int64_t expected = traffic.axes == layout::kDataAxes     ? 7
                                    : traffic.axes == Axes(Axis::replica) ? 10
                                                                          : 0;
      EXPECT_EQ(elems, expected);
      seen += elems;
    }
    EXPECT_EQ(seen, 17);
  });
}

TEST(MeshGroups, AllEndWhenOneRankAborts) {
  on_mesh({.replica = 2, .shard = 2}, 4, [](MeshGroups& groups) {
    Group& replicas = groups.over(Axis::replica);
    groups.all().barrier().wait();
    if (groups.all().rank() == 0) {
      groups.abort("rank 0 has no memory left");
      return;
    }
    // Its replica waits in their group, the others in that of all ranks.
    Group& waits = groups.all().rank() == 2 ? replicas : groups.all();
    EXPECT_THROW(waits.barrier().wait(), CommError);
  });
}

TEST(MeshGroups, NeedAMakerForAPartOfTheRanksOnly) {
  run_ranks(2, [](Group& group) {
    MeshGroups groups(Mesh({.shard = 2}, 2), group, nullptr);
    EXPECT_EQ(&groups.over(Axis::shard), &group);
    EXPECT_EQ(groups.over(Axis::replica).size(), 1);
  });
  run_ranks(4, [](Group& group) {
    MeshGroups groups(Mesh({.replica = 2, .shard = 2}, 4), group, nullptr);
    EXPECT_THROW(groups.over(Axis::shard), ConfigError);
  });
}

// What two levels of groups make of it.
TEST(ReduceScatter, InBlocksGivesTheBitsOfTwoLevels) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    on_mesh({.replica = 2, .shard = 2}, 4, [dtype](MeshGroups& groups) {
      constexpr std::int64_t kPart = 1000;
      const int rank = groups.all().rank();
      const at::Tensor whole = numbers_of_rank(4 * kPart, rank, dtype).mul_(0.37);
      const at::Tensor mine = at::empty({kPart}, at::kFloat);
      groups.all().reduce_scatter(mine, whole.clone(), {.blocks_of = 2}).wait();
      const at::Tensor inside = at::empty({2 * kPart}, at::kFloat);
      groups.over(Axis::shard).reduce_scatter(inside, whole.clone()).wait();
      groups.over(Axis::replica).all_reduce(inside).wait();
      // Ours of the four parts lies in the half of rank / 2 on the shard axis.
      const at::Tensor halves = at::empty({4 * kPart}, at::kFloat);
      groups.over(Axis::shard).all_gather(halves, inside).wait();
      EXPECT_TRUE(mine.equal(halves.narrow(0, rank * kPart, kPart)));
    });
  }
}

}  // namespace
}  // namespace capstan::comm
