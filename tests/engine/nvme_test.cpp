// Optimizer state on a disk: the same numbers, counted where they are, and nothing left behind.
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/shard/memory.h"
#include "capstan/shard/torch_dtype.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/temp_folder.h"

namespace capstan::engine {
namespace {

using store::MemoryKind;
using store::Placement;
using test::Trained;

struct DiskCase {
  int stage = 2;
  DType dtype = DType::bf16;
  int world = 1;
  int backwards = 1;
  double clip = 0;
  bool late = false;
  bool params_on_host = false;
  bool params_on_disk = false;
  bool states_on_disk = true;
  double ratio = 1;
  optim::Kind kind = optim::Kind::adamw;
  int scale_power = 8;
};

class NvmeTest : public testing::Test {
 protected:
  static Options plain(const DiskCase& run) {
    Options options = test::fp32_options(run.stage);
    options.batch.accumulation_steps = run.backwards;
    options.gradient_clipping = run.clip;
    options.optimizer->kind = run.kind;
    options.precision.params = run.dtype;
    options.precision.loss_scale.initial_scale_power = run.scale_power;
    options.precision.loss_scale.hysteresis = 1;
    return options;
  }
  Options on_disk(const DiskCase& run) const {
    Options options = plain(run);
    options.store.optimizer.placement = run.states_on_disk ? Placement::nvme : Placement::device;
    options.store.optimizer.nvme_paths = {(folder_.path() / "x").string(),
                                          (folder_.path() / "y").string()};
    options.store.optimizer.ratio = run.ratio;
    options.store.optimizer.late_updates = run.late;
    options.shard.sub_group_elems = 50;  // several tiles in a unit
    if (run.params_on_host) options.store.params.placement = Placement::host;
    if (!run.params_on_disk) return options;
    options.store.params.placement = Placement::nvme;
    options.store.params.nvme_paths = {(folder_.path() / "z").string()};
    options.store.params.buffer_bytes = 400;
    return options;
  }
  static Trained train(const DiskCase& run, const Options& options) {
    return test::train(
        run.world, options, [&](Engine& engine, test::SmallModel& model, std::uint64_t seed) {
          const auto batch = test::make_batch(4, test::kWidth, test::kClasses, seed);
          engine.backward(test::loss_of(model, batch, shard::torch_dtype(run.dtype)));
        });
  }
  int files_left() const {
    int count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      count += static_cast<int>(entry.is_regular_file());
    }
    return count;
  }

  test::TempFolder folder_;
};

TEST_F(NvmeTest, GivesTheSameBits) {
  const std::vector<DiskCase> cases = {
      {.stage = 1, .world = 2, .clip = 0.05},
      {.stage = 2, .world = 1, .backwards = 3},
      {.stage = 2, .dtype = DType::fp32, .world = 3, .late = true, .ratio = 0.5},
      {.stage = 2, .dtype = DType::fp16, .world = 2, .scale_power = 24},
      {.stage = 3, .world = 2, .clip = 0.05, .late = true},
      {.stage = 3, .world = 1, .late = true, .params_on_host = true},
      {.stage = 3, .dtype = DType::fp32, .world = 2, .params_on_host = true},
      {.stage = 3, .world = 4, .kind = optim::Kind::lion},
      {.stage = 3, .world = 2, .clip = 0.05, .late = true, .params_on_disk = true},
      {.stage = 3, .dtype = DType::fp32, .world = 1, .backwards = 2, .params_on_disk = true},
      {.stage = 3, .world = 3, .params_on_disk = true, .states_on_disk = false},
      {.stage = 3, .dtype = DType::fp16, .world = 2, .params_on_disk = true, .scale_power = 24},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Trained expected = train(cases[i], plain(cases[i]));
    const Trained got = train(cases[i], on_disk(cases[i]));
    EXPECT_TRUE(test::all_equal(expected.params, got.params)) << "case " << i;
    for (std::size_t step = 0; step < expected.reports.size(); ++step) {
      EXPECT_EQ(expected.reports[step].applied, got.reports[step].applied) << "case " << i;
    }
    EXPECT_EQ(files_left(), 0);
  }
}

TEST_F(NvmeTest, KeepsStatesOnTheDiskAndGradientsOnTheHost) {
  run_ranks(2, [&](comm::Group& group) {
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    Engine engine(model, on_disk({.stage = 3, .world = 2}), {.group = &group});
    shard::ShardedModel& sharded = engine.inside().sharded();
    std::int64_t owned = 0;
    for (const int unit : sharded.step_order()) owned += sharded.states(unit).owned.range.size();
    EXPECT_EQ(sharded.places().disk_ledger().now()[MemoryKind::optimizer], 12 * owned);
    EXPECT_EQ(sharded.places().disk_ledger().now(),
              shard::disk_forecast(sharded.plan(), sharded.settings()));
    EXPECT_EQ(sharded.places().host_ledger().now()[MemoryKind::optimizer], 0);
    EXPECT_EQ(sharded.places().device_ledger().now()[MemoryKind::optimizer], 0);
    const auto batch = test::make_batch(4, test::kWidth, test::kClasses, 5);
    engine.backward(test::loss_of(model, batch, at::kBFloat16));
    sharded.finish_gradients();
    EXPECT_EQ(sharded.places().host_ledger().now().total(),
              shard::host_forecast(sharded.plan(), sharded.settings()).total());
    engine.step();
    EXPECT_THAT(engine.describe(), testing::HasSubstr("disks "));
  });
}

TEST_F(NvmeTest, KeepsShardsOnTheDisk) {
  run_ranks(2, [&](comm::Group& group) {
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    Engine engine(model, on_disk({.stage = 3, .world = 2, .params_on_disk = true}),
                  {.group = &group});
    shard::ShardedModel& sharded = engine.inside().sharded();
    const auto expected = shard::disk_forecast(sharded.plan(), sharded.settings());
    EXPECT_GT(expected[MemoryKind::parameters], 0);
    EXPECT_EQ(sharded.places().disk_ledger().now(), expected);
    EXPECT_EQ(sharded.places().host_ledger().now()[MemoryKind::parameters], 0);
    const auto batch = test::make_batch(4, test::kWidth, test::kClasses, 5);
    for (int step = 0; step < 3; ++step) {
      engine.backward(test::loss_of(model, batch, at::kBFloat16));
      engine.step();
      EXPECT_EQ(sharded.places().host_ledger().now()[MemoryKind::parameters], 0);
    }
  });
}

// A checkpoint of a run on disk continues a run in memory, and the reverse.
TEST_F(NvmeTest, SavesAndLoadsAsEverywhere) {
  run_ranks(2, [&](comm::Group& group) {
    const DiskCase run{.stage = 2, .world = 2};
    const auto steps = [&](Engine& engine, test::SmallModel& model, std::uint64_t seed) {
      const auto batch = test::make_batch(4, test::kWidth, test::kClasses, seed);
      engine.backward(test::loss_of(model, batch, at::kBFloat16));
      engine.step();
    };
    const auto continued = [&](const Options& before, const Options& after, const char* name) {
      const auto where = folder_.path() / name;
      test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
      test::fill(*model, 11);
      Engine engine(model, before, {.group = &group});
      steps(engine, model, 1);
      engine.save_checkpoint(where);
      test::SmallModel other(test::kWidth, test::kBlocks, test::kClasses);
      Engine next(other, after, {.group = &group});
      EXPECT_TRUE(next.load_checkpoint(where).has_value());
      steps(next, other, 2);
      return test::masters(next);
    };
    const auto expected = continued(plain(run), plain(run), "a");
    EXPECT_TRUE(test::all_equal(expected, continued(on_disk(run), plain(run), "b")));
    EXPECT_TRUE(test::all_equal(expected, continued(plain(run), on_disk(run), "c")));
    const DiskCase all{.stage = 3, .world = 2, .params_on_disk = true};
    EXPECT_TRUE(test::all_equal(expected, continued(on_disk(all), on_disk(all), "d")));
  });
}

TEST_F(NvmeTest, IsRefusedByNameWhereItCannotWork) {
  const auto message = [&](const Options& options) -> std::string {
    try {
      train({}, options);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(on_disk({.kind = optim::Kind::lamb})), testing::HasSubstr("lamb"));
  Options params = on_disk({.stage = 3, .params_on_disk = true});
  params.store.params.nvme_paths.clear();
  EXPECT_THAT(message(params), testing::HasSubstr("parameters on nvme need nvme_paths"));
  Options nowhere = on_disk({});
  nowhere.store.optimizer.nvme_paths.clear();
  EXPECT_THAT(message(nowhere), testing::HasSubstr("nvme_paths"));
}

}  // namespace
}  // namespace capstan::engine
