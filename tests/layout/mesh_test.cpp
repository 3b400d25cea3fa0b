#include "capstan/layout/mesh.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::layout {
namespace {

using Lists = std::vector<std::vector<int>>;

constexpr Axis kGrid[] = {Axis::pipe, Axis::replica, Axis::shard, Axis::sequence, Axis::tensor};

// Every way to write `product` as `count` factors.
Lists factorisations(int product, int count) {
  if (count == 1) return {{product}};
  Lists all;
  for (int first = 1; first <= product; ++first) {
    if (product % first != 0) continue;
    for (std::vector<int>& rest : factorisations(product / first, count - 1)) {
      rest.insert(rest.begin(), first);
      all.push_back(std::move(rest));
    }
  }
  return all;
}

std::vector<Mesh> meshes(int world_size) {
  std::vector<Mesh> all;
  for (const std::vector<int>& f : factorisations(world_size, 5)) {
    const int readable = f[1] * f[2] * f[3];
    const int expert = readable % 4 == 0 ? 4 : readable % 3 == 0 ? 3 : 1;
    all.emplace_back(MeshSizes{f[0], f[1], f[2], f[3], f[4], expert}, world_size);
  }
  return all;
}

std::vector<Axes> some_axes() {
  std::vector<Axes> all = {Axis::expert,
                           Axis::expert_replica,
                           {Axis::expert, Axis::expert_replica},
                           {Axis::expert, Axis::pipe, Axis::tensor}};
  for (unsigned bits = 0; bits < 32; ++bits) {
    Axes axes;
    for (unsigned i = 0; i < 5; ++i) {
      if ((bits & (1U << i)) != 0) axes = axes | kGrid[i];
    }
    all.push_back(axes);
  }
  return all;
}

void expect_every_rank_once(const Mesh& mesh, Axes axes) {
  std::vector<char> seen(static_cast<std::size_t>(mesh.world_size()), 0);
  int first = -1;
  for (const std::vector<int>& group : mesh.groups(axes)) {
    ASSERT_EQ(static_cast<int>(group.size()), mesh.size(axes));
    ASSERT_TRUE(std::ranges::is_sorted(group));
    ASSERT_GT(group.front(), first);
    first = group.front();
    for (std::size_t i = 0; i < group.size(); ++i) {
      ASSERT_EQ(mesh.place(axes, group[i]), static_cast<int>(i));
      ++seen[static_cast<std::size_t>(group[i])];
    }
  }
  ASSERT_TRUE(std::ranges::all_of(seen, [](char count) { return count == 1; })) << to_string(axes);
}

TEST(Mesh, PutsEveryRankInOneGroupOfAnyAxesAtAllSizesUpTo32) {
  for (int world_size = 1; world_size <= 32; ++world_size) {
    for (const Mesh& mesh : meshes(world_size)) {
      for (const Axes axes : some_axes()) expect_every_rank_once(mesh, axes);
    }
  }
}

TEST(Mesh, HoldsForLargeWorlds) {
  for (const int world_size : {1000, 1024, 4096, 9240, 9973, 10'000}) {
    std::vector<Mesh> all = meshes(world_size);
    for (std::size_t i = 0; i < all.size(); i += 1 + all.size() / 7) {
      for (const Axes axes : some_axes()) expect_every_rank_once(all[i], axes);
    }
  }
}

TEST(Mesh, RanksOfAGroupDifferOnItsAxesOnly) {
  const Mesh mesh({.pipe = 2, .replica = 3, .shard = 5, .sequence = 2, .tensor = 4, .expert = 6},
                  240);
  for (const Axes axes : some_axes()) {
    const bool experts = axes.has(Axis::expert) || axes.has(Axis::expert_replica);
    for (const int rank : {0, 1, 7, 121, 239}) {
      for (const int other : mesh.group(axes, rank)) {
        for (const Axis axis : kGrid) {
          if (axes.has(axis)) continue;
          if (experts && axis != Axis::pipe && axis != Axis::tensor) continue;
          EXPECT_EQ(mesh.place(axis, other), mesh.place(axis, rank));
        }
        for (const Axis axis : {Axis::expert, Axis::expert_replica}) {
          if (experts && !axes.has(axis)) {
            EXPECT_EQ(mesh.place(axis, other), mesh.place(axis, rank));
          }
        }
      }
    }
  }
}

// The lists that upstream's grid of pipe, data and model makes.
TEST(Mesh, GroupsAreUpstreams) {
  const Mesh cube({.pipe = 2, .shard = 2, .tensor = 2}, 8);
  EXPECT_EQ(cube.groups(Axis::pipe), (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(cube.groups(kDataAxes), (Lists{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(cube.groups(Axis::tensor), (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  const Mesh flat({.pipe = 3, .shard = 2}, 6);
  EXPECT_EQ(flat.groups(Axis::pipe), (Lists{{0, 2, 4}, {1, 3, 5}}));
  EXPECT_EQ(flat.groups(Axis::shard), (Lists{{0, 1}, {2, 3}, {4, 5}}));
  // Sequence-parallel ranks are blocks, hybrid shards too, and their replicas lie apart.
  EXPECT_EQ(Mesh({.shard = 2, .sequence = 2}, 4).groups(Axis::sequence), (Lists{{0, 1}, {2, 3}}));
  const Mesh hybrid({.replica = 2, .shard = 2}, 4);
  EXPECT_EQ(hybrid.groups(Axis::shard), (Lists{{0, 1}, {2, 3}}));
  EXPECT_EQ(hybrid.groups(Axis::replica), (Lists{{0, 2}, {1, 3}}));
}

TEST(Mesh, ExpertsAreASecondReading) {
  const Mesh mesh({.shard = 8, .tensor = 2, .expert = 4}, 16);
  EXPECT_EQ(mesh.groups(Axis::expert),
            (Lists{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}}));
  EXPECT_EQ(mesh.groups(Axis::expert_replica),
            (Lists{{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}}));
  EXPECT_THROW(mesh.group({Axis::expert, Axis::shard}, 0), InternalError);
  EXPECT_THROW(Mesh({.shard = 8, .expert = 3}, 8), ConfigError);
}

TEST(Mesh, AxesOfOneRankNameNoOtherGroups) {
  const Mesh mesh({.pipe = 2, .shard = 4, .expert = 4}, 8);
  EXPECT_EQ(mesh.longer_than_one(kGridAxes), (Axes{Axis::pipe, Axis::shard}));
  EXPECT_EQ(mesh.longer_than_one({Axis::expert_replica, Axis::expert}), Axes(Axis::expert));
  EXPECT_TRUE(mesh.longer_than_one(Axis::tensor).empty());
  EXPECT_EQ(mesh.size(kGridAxes), mesh.world_size());
}

TEST(Mesh, NamesAxesInItsOrder) {
  EXPECT_EQ(to_string(Axes{Axis::tensor, Axis::replica}), "replica x tensor");
  EXPECT_EQ(to_string(Axes{}), "");
  EXPECT_EQ((Axes{Axis::pipe, Axis::shard}.without(Axis::pipe)), Axes(Axis::shard));
}

TEST(Mesh, ShowsTheProductThatFailed) {
  try {
    Mesh({.pipe = 2, .shard = 3, .tensor = 4}, 16);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.info().what, "2 (pipe) x 3 (shard) x 4 (tensor) = 24, but there are 16 ranks");
  }
  EXPECT_THROW(Mesh({.shard = 0}, 0), ConfigError);
  EXPECT_THROW(Mesh({.pipe = -1, .shard = -4}, 4), ConfigError);
  // The product does not fit in an int and must not wrap round to the world size.
  EXPECT_THROW(Mesh({.pipe = 65'536, .shard = 65'536}, 0), ConfigError);
}

}  // namespace
}  // namespace capstan::layout
