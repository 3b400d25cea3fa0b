#include "capstan/layout/mesh.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::layout {
namespace {

constexpr Axis kAxes[] = {Axis::pipe, Axis::data, Axis::tensor};

// Every factorisation of world_size into three axes.
std::vector<MeshSizes> factorisations(int world_size) {
  std::vector<MeshSizes> all;
  for (int pipe = 1; pipe <= world_size; ++pipe) {
    if (world_size % pipe != 0) continue;
    const int rest = world_size / pipe;
    for (int data = 1; data <= rest; ++data) {
      if (rest % data == 0) all.push_back({pipe, data, rest / data});
    }
  }
  return all;
}

void expect_places_and_lines_agree(const Mesh& mesh) {
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    ASSERT_EQ(mesh.rank_at(mesh.place(rank)), rank);
  }
  for (const Axis axis : kAxes) {
    std::vector<int> seen(mesh.world_size(), 0);
    for (const std::vector<int>& line : mesh.lines(axis)) {
      ASSERT_EQ(static_cast<int>(line.size()), mesh.size(axis));
      ASSERT_TRUE(std::ranges::is_sorted(line));
      for (const int rank : line) ++seen[rank];
    }
    ASSERT_TRUE(std::ranges::all_of(seen, [](int count) { return count == 1; }));
  }
}

TEST(Mesh, PutsEveryRankInOneLineOfEachAxisAtAllSizesUpTo64) {
  for (int world_size = 1; world_size <= 64; ++world_size) {
    for (const MeshSizes& sizes : factorisations(world_size)) {
      expect_places_and_lines_agree(Mesh(sizes, world_size));
    }
  }
}

TEST(Mesh, HoldsForLargeWorlds) {
  for (const int world_size : {1000, 1024, 4096, 9240, 9973, 10'000}) {
    for (const MeshSizes& sizes : factorisations(world_size)) {
      expect_places_and_lines_agree(Mesh(sizes, world_size));
    }
  }
}

TEST(Mesh, LinesThroughARankShareItsOtherCoordinates) {
  const Mesh mesh({.pipe = 4, .data = 25, .tensor = 100}, 10'000);
  for (const int rank : {0, 1, 99, 100, 2499, 2500, 9999}) {
    const MeshPlace mine = mesh.place(rank);
    for (const Axis axis : kAxes) {
      const std::vector<int> line = mesh.line(axis, rank);
      EXPECT_TRUE(std::ranges::find(line, rank) != line.end());
      for (int i = 0; i < mesh.size(axis); ++i) {
        MeshPlace expected = mine;
        (axis == Axis::pipe   ? expected.pipe
         : axis == Axis::data ? expected.data
                              : expected.tensor) = i;
        EXPECT_EQ(line[i], mesh.rank_at(expected));
      }
    }
  }
}

TEST(Mesh, KeepsTensorRanksNextToEachOther) {
  const Mesh mesh({.pipe = 2, .data = 2, .tensor = 2}, 8);
  EXPECT_EQ(mesh.line(Axis::tensor, 5), (std::vector<int>{4, 5}));
  EXPECT_EQ(mesh.line(Axis::data, 5), (std::vector<int>{5, 7}));
  EXPECT_EQ(mesh.line(Axis::pipe, 5), (std::vector<int>{1, 5}));
}

TEST(Mesh, ShowsTheProductThatFailed) {
  try {
    Mesh({.pipe = 2, .data = 3, .tensor = 4}, 16);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.info().what, "2 (pipe) x 3 (data) x 4 (tensor) = 24, but there are 16 ranks");
  }
  EXPECT_THROW(Mesh({.pipe = 1, .data = 0, .tensor = 1}, 0), ConfigError);
  EXPECT_THROW(Mesh({.pipe = -1, .data = -4, .tensor = 1}, 4), ConfigError);
  // The product does not fit in an int and must not wrap round to the world size.
  EXPECT_THROW(Mesh({.pipe = 65'536, .data = 65'536, .tensor = 1}, 0), ConfigError);
}

}  // namespace
}  // namespace capstan::layout
