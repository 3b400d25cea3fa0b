// A model that outlives its engine: wherever the shards were, what the last step made of them stays
// with the parameters.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/shard/loose_shard.h"
#include "capstan/shard/torch_dtype.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/temp_folder.h"

namespace capstan::engine {
namespace {

using store::Placement;

void train_steps(Engine& engine, test::SmallModel& model) {
  const auto dtype = shard::torch_dtype(engine.options().precision.params);
  for (int step = 0; step < 3; ++step) {
    const auto seed = static_cast<std::uint64_t>(10 * step + engine.group().rank());
    engine.backward(
        test::loss_of(model, test::make_batch(4, test::kWidth, test::kClasses, seed), dtype));
    engine.step();
  }
}

struct LeftModel {
  test::SmallModel model{test::kWidth, test::kBlocks, test::kClasses};
  std::vector<std::shared_ptr<shard::LooseShard>> shards;

  // All of it as one list, with what is sharded made whole. Collective.
  std::vector<at::Tensor> values() {
    for (const auto& shard : shards) {
      if (shard != nullptr) shard->pin();
    }
    std::vector<at::Tensor> result;
    for (const at::Tensor& param : model->parameters()) result.push_back(param.detach().clone());
    for (const auto& shard : shards) {
      if (shard != nullptr) shard->unpin();
    }
    return result;
  }
};

// Trains, and lets the engine go at once: a late update may be under way.
void train_and_leave(LeftModel& left, comm::Group& group, const Options& options,
                     const shard::AsideKinds& aside = {}) {
  test::fill(*left.model, 11);
  Engine engine(left.model, options, {.group = &group});
  train_steps(engine, left.model);
  if (aside.params) engine.offload_states(aside);
  left.shards = shard::leave_shards(engine.inside().sharded(), {std::shared_ptr<void>(), &group});
}

Options bf16_options(int stage) {
  Options options = test::fp32_options(stage);
  options.precision.params = DType::bf16;
  return options;
}

void expect_as_at_stage_0(int world, const Options& options, const shard::AsideKinds& aside = {}) {
  run_ranks(world, [&](comm::Group& group) {
    LeftModel plain;
    train_and_leave(plain, group, bf16_options(0));
    for (const auto& shard : plain.shards) EXPECT_EQ(shard, nullptr);
    LeftModel left;
    train_and_leave(left, group, options, aside);
    int sharded = 0;
    for (const auto& shard : left.shards) sharded += shard != nullptr ? 1 : 0;
    // The weight of the entry and three parameters of each block; the rest stays whole.
    EXPECT_EQ(sharded, options.shard.stage == 3 ? 10 : 0);
    EXPECT_TRUE(test::all_equal(plain.values(), left.values()));
    EXPECT_TRUE(test::all_equal(plain.values(), left.values()));  // they are sharded again
  });
}

TEST(Leave, ABackwardWithoutTheEngineSaysWhatIsGone) {
  run_ranks(2, [](comm::Group& group) {
    for (const int stage : {2, 3}) {
      test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
      at::Tensor loss;
      {
        Engine engine(model, test::fp32_options(stage), {.group = &group});
        loss =
            test::loss_of(model, test::make_batch(4, test::kWidth, test::kClasses, 1), at::kFloat);
      }
      if (stage < 3) {  // an ordinary model again
        loss.backward();
        EXPECT_TRUE(model->entry->weight.grad().defined());
        continue;
      }
      try {
        loss.backward();
        ADD_FAILURE() << "no error";
      } catch (const ConfigError& error) {
        EXPECT_NE(std::string(error.what()).find("the engine that this forward ran under is gone"),
                  std::string::npos);
      }
    }
  });
}

TEST(Leave, ShardsOfTheDevice) {
  for (const int world : {1, 2, 3}) expect_as_at_stage_0(world, bf16_options(3));
}

TEST(Leave, ShardsThatALateUpdateStillChanges) {
  for (const int world : {1, 2}) {
    for (const int stage : {2, 3}) {
      Options options = bf16_options(stage);
      options.store.optimizer.placement = Placement::host;
      options.store.optimizer.late_updates = true;
      expect_as_at_stage_0(world, options);
    }
  }
}

TEST(Leave, ShardsOfTheHost) {
  for (const bool late : {false, true}) {
    Options options = bf16_options(3);
    options.store.params.placement = Placement::host;
    options.store.optimizer.placement = Placement::host;
    options.store.optimizer.late_updates = late;
    expect_as_at_stage_0(2, options);
  }
}

TEST(Leave, ShardsOfADisk) {
  const test::TempFolder folder;
  Options options = bf16_options(3);
  options.store.params.placement = Placement::nvme;
  options.store.params.nvme_paths = {folder.path().string()};
  expect_as_at_stage_0(2, options);
}

TEST(Leave, ShardsThatWereAside) {
  expect_as_at_stage_0(2, bf16_options(3), {.moments = true, .masters = true, .params = true});
}

}  // namespace
}  // namespace capstan::engine
