// The verbs of a home, whichever it is.
#include "capstan/store/home.h"

#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/store/disk_homes.h"
#include "capstan/store/places.h"
#include "capstan/store/tensor.h"
#include "tests/support/temp_folder.h"

namespace capstan::store {
namespace {

constexpr std::int64_t kElems = 3000;
constexpr int kTiles = 7;

class HomeTest : public testing::TestWithParam<Placement> {
 protected:
  PlacesOptions options() const {
    const SwapOptions disk{
        .folders = {folder_.path()}, .needed_bytes = 1 << 20, .label = "test", .layout_hash = 1};
    const PlaceOptions place{.placement = GetParam(), .pin = false, .disk = disk};
    return {.states = place, .params = place, .read_ahead = {.io = {}, .limit_bytes = 5 * 4000}};
  }

  capstan::test::TempFolder folder_;
};

at::Tensor counted(Pool& pool) {
  at::Tensor values = new_tensor(pool, kElems, at::kFloat, MemoryKind::optimizer);
  for (std::int64_t i = 0; i < kElems; ++i) values[i] = static_cast<float>(i);
  return values;
}

std::vector<Spans> tiles_of(const std::vector<at::Tensor>& columns) {
  std::vector<Spans> tiles(kTiles);
  constexpr std::int64_t kTile = kElems / kTiles;
  for (int t = 0; t < kTiles; ++t) {
    for (const at::Tensor& column : columns) {
      tiles[static_cast<std::size_t>(t)].push_back(span_of(column, t * kTile, kTile));
    }
  }
  return tiles;
}

TEST_P(HomeTest, BringsStatesAheadAndTakesThemBack) {
  Places places(c10::kCPU, options(), nullptr);
  Home& home = places.states(GetParam());
  const std::vector<at::Tensor> columns = {counted(home.pool()), counted(home.pool())};
  home.write_back(Home::Which::new_memory);
  const std::vector<Spans> tiles = tiles_of(columns);
  for (int step = 0; step < 2; ++step) {
    home.ahead(tiles);
    for (const Spans& tile : tiles) {
      const Taken taken = home.take(tile);
      ASSERT_EQ(taken.at.size(), 2U);
      EXPECT_EQ(taken.at[0] == tile[0].data(), home.in_place());
      auto* const first = reinterpret_cast<float*>(taken.at[0]);
      auto* const second = reinterpret_cast<float*>(taken.at[1]);
      for (std::size_t i = 0; i < tile[0].size() / sizeof(float); ++i) {
        first[i] += 1;
        second[i] += first[i];
      }
    }
    home.behind();
  }
  home.settle();
  const std::int64_t last = kElems / kTiles * kTiles - 1;
  for (const std::int64_t i : {std::int64_t{0}, last / 2, last}) {
    EXPECT_EQ(columns[0][i].item<float>(), static_cast<float>(i) + 2) << i;
    EXPECT_EQ(columns[1][i].item<float>(), static_cast<float>(3 * i) + 3) << i;
  }
}

TEST_P(HomeTest, GivesShardsInAnyOrderAndAnewAfterAChange) {
  Places places(c10::kCPU, options(), nullptr);
  Home& home = places.params(GetParam());
  const at::Tensor shards = counted(home.pool());
  home.write_back(Home::Which::new_memory);
  const std::vector<Spans> tiles = tiles_of({shards});
  const auto first_of = [&](int tile) {
    const Taken taken = home.take(tiles[static_cast<std::size_t>(tile)]);
    return *reinterpret_cast<const float*>(taken.at[0]);
  };
  constexpr float kTile = kElems / kTiles;
  home.ahead({tiles[1], tiles[2], tiles[3], tiles[4], tiles[5], tiles[6]});  // more than the limit
  EXPECT_EQ(first_of(2), 2 * kTile);
  EXPECT_EQ(first_of(0), 0);
  EXPECT_EQ(first_of(6), 6 * kTile);
  home.settle();
  shards.fill_(42);
  EXPECT_EQ(first_of(1), 42);
  EXPECT_EQ(first_of(6), 42);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, HomeTest,
                         testing::Values(Placement::device, Placement::host, Placement::nvme));

TEST(StreamedHome, RefusesWhatItWasNotAskedFor) {
  const capstan::test::TempFolder folder;
  Ledger ledger;
  StreamedHome home({.folders = {folder.path()}, .needed_bytes = 1 << 20, .label = "test"}, {},
                    ledger, nullptr);
  const at::Tensor values = counted(home.pool());
  const std::vector<Spans> tiles = tiles_of({values});
  EXPECT_THROW(home.take(tiles[0]), InternalError);
  home.ahead(tiles);
  EXPECT_THROW(home.take(tiles[1]), InternalError);
  EXPECT_NO_THROW(home.take(tiles[0]));
  home.settle();
}

TEST(Places, HaveNoHomeThatNobodyAskedFor) {
  Places places(c10::kCPU, {}, nullptr);
  EXPECT_EQ(places.traffic(), nullptr);
  EXPECT_TRUE(places.states(Placement::device).in_place());
  EXPECT_THROW(places.states(Placement::nvme), InternalError);
  EXPECT_THROW(places.params(Placement::host), InternalError);
}

TEST(Places, PinTheMemoryOfStatesOnTheDeviceAsTheParametersWantIt) {
  PlacesOptions options{.states = {.placement = Placement::host, .pin = true},
                        .params = {.placement = Placement::host, .pin = false}};
  EXPECT_TRUE(options.pins_states());
  options.states.placement = Placement::device;
  EXPECT_FALSE(options.pins_states());
}

}  // namespace
}  // namespace capstan::store
