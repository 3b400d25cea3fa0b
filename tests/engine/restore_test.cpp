// What a load brings back beside weights and optimizer, and the options that steer saves and loads.
#include <fstream>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "capstan/base/error.h"
#include "capstan/base/log.h"
#include "capstan/checkpoint/folder.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/temp_folder.h"

namespace capstan::test {
namespace {

class Warnings final : public Logger {
 public:
  void log(LogLevel level, std::string_view text) override {
    if (level == LogLevel::warning) lines.emplace_back(text);
  }
  std::vector<std::string> lines;
};

struct World {
  World(comm::Group& group, const engine::Options& options, Logger* log = nullptr)
      : model(kWidth, kBlocks, kClasses),
        engine(filled(model), options, {.group = &group, .logger = log}) {}
  static SmallModel& filled(SmallModel& model) {
    fill(*model, 11);
    model->register_buffer("extra", at::full({2}, 5.0));
    return model;
  }
  void step(int count) {
    const at::ScalarType type = model->head->weight.scalar_type();
    for (int i = 0; i < count; ++i) {
      const auto seed = static_cast<std::uint64_t>(i);
      engine.backward(loss_of(model, make_batch(4, kWidth, kClasses, seed), type));
      engine.step();
    }
  }
  SmallModel model;
  Engine engine;
};

TEST(Load, BringsBackRandomNumbersAndBuffers) {
  run_ranks(1, [](comm::Group& group) {
    const TempFolder folder;
    World world(group, fp32_options(1));
    at::Tensor buffer = world.model->named_buffers()["extra"];
    torch::manual_seed(5);
    world.engine.save_checkpoint(folder.path());
    const at::Tensor expected = at::rand({4});
    buffer.zero_();
    ASSERT_TRUE(world.engine.load_checkpoint(folder.path()).has_value());
    EXPECT_TRUE(at::rand({4}).equal(expected));
    EXPECT_EQ(buffer.sum().item<float>(), 10);
  });
}

TEST(Load, GivesAllRanksTheBuffersOfTheFirst) {
  const TempFolder folder;
  run_ranks(2, [&folder](comm::Group& group) {
    World world(group, fp32_options(1));
    at::Tensor buffer = world.model->named_buffers()["extra"];
    buffer.fill_(5.0 + group.rank());
    world.engine.save_checkpoint(folder.path());
    buffer.zero_();
    ASSERT_TRUE(world.engine.load_checkpoint(folder.path()).has_value());
    EXPECT_TRUE(buffer.eq(5.0).all().item<bool>());
  });
}

TEST(Load, LeavesTheScheduleWhereItStandsIfAsked) {
  run_ranks(1, [](comm::Group& group) {
    const TempFolder folder;
    engine::Options options = fp32_options(1);
    options.schedule = schedule::WarmupLr{.max_lr = {1e-2}, .num_steps = 8};
    World saved(group, options);
    saved.step(4);
    saved.engine.save_checkpoint(folder.path());
    World fresh(group, options);
    const std::vector<double> start = fresh.engine.learning_rates();
    ASSERT_NE(start, saved.engine.learning_rates());
    fresh.engine.load_checkpoint(folder.path(), {.load_lr_scheduler_states = false});
    EXPECT_EQ(fresh.engine.learning_rates(), start);
    fresh.engine.load_checkpoint(folder.path());
    EXPECT_EQ(fresh.engine.learning_rates(), saved.engine.learning_rates());
  });
}

TEST(Load, TakesMastersFromWhereItIsTold) {
  const TempFolder folder;
  run_ranks(2, [&folder](comm::Group& group) {
    engine::Options options = fp32_options(1);
    options.precision.params = DType::bf16;
    World saved(group, options);
    saved.step(2);
    saved.engine.save_checkpoint(folder.path());
    for (const bool from_fp32 : {true, false}) {
      options.checkpoint.load_from_fp32_weights = from_fp32;
      World loaded(group, options);
      loaded.engine.load_checkpoint(folder.path());
      const std::string name = "block0.up.weight";
      const at::Tensor rounded = saved.engine.parameter(name).to(at::kFloat);
      ASSERT_FALSE(saved.engine.master(name).equal(rounded));
      EXPECT_TRUE(
          loaded.engine.master(name).equal(from_fp32 ? saved.engine.master(name) : rounded));
    }
  });
}

TEST(Load, FollowsTheFileOfUniversalCheckpointsWhereAsked) {
  run_ranks(1, [](comm::Group& group) {
    const TempFolder folder;
    engine::Options options = fp32_options(1);
    World saved(group, options);
    saved.engine.save_checkpoint(folder.path(), {.tag = "older"});
    saved.engine.save_checkpoint(folder.path(), {.tag = "newer"});
    std::ofstream(std::filesystem::path(folder.path()) / checkpoint::kLatestUniversalFile)
        << "older";
    for (const bool universal : {false, true}) {
      options.checkpoint.load_universal = universal;
      World loaded(group, options);
      EXPECT_EQ(loaded.engine.load_checkpoint(folder.path())->tag, universal ? "older" : "newer");
    }
  });
}

TEST(Save, ComparesTheTagsOfTheRanksAsConfigured) {
  using checkpoint::TagValidation;
  const TempFolder folder;
  for (const auto how : {TagValidation::ignore, TagValidation::warn, TagValidation::fail}) {
    run_ranks(2, [&](comm::Group& group) {
      engine::Options options = fp32_options(1);
      options.checkpoint.tag_validation = how;
      Warnings log;
      World world(group, options, &log);
      const engine::SaveOptions save{.tag = "of" + std::to_string(group.rank())};
      if (how == TagValidation::fail) {
        EXPECT_THROW(world.engine.save_checkpoint(folder.path(), save), ConfigError);
        return;
      }
      EXPECT_EQ(world.engine.save_checkpoint(folder.path(), save).tag, "of0");
      const bool warned = group.rank() == 0 && how == TagValidation::warn;
      EXPECT_EQ(log.lines.size(), warned ? 1U : 0U);
    });
  }
}

}  // namespace
}  // namespace capstan::test
