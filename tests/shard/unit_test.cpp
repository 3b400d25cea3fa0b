#include "capstan/shard/unit.h"

#include <vector>

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "capstan/store/ledger.h"

namespace capstan::shard {
namespace {

using store::MemoryKind;
using store::Placement;

// A unit of one parameter on the first of `shards` ranks, its shard at `placement`.
struct OneUnit {
  OneUnit(int shards, Placement placement, bool keep_whole = false)
      : plan(make_plan({{.name = "w", .sizes = {64}}}, {{.name = "w", .params = {0}}},
                       {.shards = shards, .persistence_threshold_elems = 0})),
        unit(plan.units[0], plan.params, {param},
             {device, placement == Placement::device ? device : elsewhere, placement},
             {.keep_whole = keep_whole}) {}

  std::int64_t on_device() const { return device_ledger.now()[MemoryKind::parameters]; }
  std::int64_t off_device() const { return other_ledger.now()[MemoryKind::parameters]; }

  Plan plan;
  store::Ledger device_ledger;
  store::Ledger other_ledger;
  store::Pool device{c10::kCPU, device_ledger};
  store::Pool elsewhere{c10::kCPU, other_ledger};
  at::Tensor param = at::arange(64, at::kFloat);
  Unit unit;
};

TEST(Unit, KeepsItsShardInTheMemoryOfItsPlacement) {
  for (const Placement placement : {Placement::device, Placement::host, Placement::nvme}) {
    OneUnit one(2, placement);
    one.unit.release();
    const bool here = placement == Placement::device;
    EXPECT_EQ(one.unit.placement(), placement);
    EXPECT_EQ(one.unit.shard_on_host(), !here);
    EXPECT_EQ(one.on_device(), here ? 128 : 0);
    EXPECT_EQ(one.off_device(), here ? 0 : 128);
    EXPECT_TRUE(one.unit.shard().eq(at::arange(32, at::kFloat)).all().item<bool>());
  }
}

// Alone, the shard is all there is of the unit; elsewhere it must travel all the same.
TEST(Unit, OfOneRankIsGatheredForNothingOnlyOnTheDevice) {
  OneUnit here(1, Placement::device);
  here.unit.release();
  EXPECT_TRUE(here.unit.gather_is_free());
  here.unit.start_gather();
  EXPECT_EQ(here.unit.flat().data_ptr(), here.unit.shard().data_ptr());
  EXPECT_EQ(here.on_device(), 256);

  OneUnit there(1, Placement::host);
  there.unit.release();
  EXPECT_FALSE(there.unit.gather_is_free());
  there.unit.start_gather();
  EXPECT_NE(there.unit.flat().data_ptr(), there.unit.shard().data_ptr());
  EXPECT_EQ(there.on_device() + there.off_device(), 512);
}

TEST(Unit, ThatStaysWholeHasItsShardInTheWholeBuffer) {
  OneUnit one(2, Placement::device, /*keep_whole=*/true);
  EXPECT_EQ(one.unit.shard().data_ptr(), one.unit.flat().data_ptr());
  EXPECT_EQ(one.on_device(), 256);
  one.unit.release();
  EXPECT_EQ(one.on_device(), 128);
  EXPECT_EQ(one.param.numel(), 0);
}

}  // namespace
}  // namespace capstan::shard
