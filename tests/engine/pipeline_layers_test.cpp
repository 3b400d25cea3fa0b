// A list of layers as a pipeline; docs/pipelines.md shows a part of it, as tests/docs checks.
#include "capstan/engine/pipeline.h"

#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/engine/engine_state.h"
#include "tests/engine/chain_stages.h"

namespace capstan::test {
namespace {

constexpr int kLayers = 4;
constexpr int kMicroBatchesOfLayers = 4;

struct LayersRun {
  std::map<std::string, at::Tensor> masters;
  std::vector<double> losses;
  double validation = 0;
};

torch::nn::AnyModule make_block(int number) {
  nn::Unit<BlockImpl> block(kWidth);
  fill(*block, static_cast<std::uint64_t>(31 + number));
  return torch::nn::AnyModule(block);
}

at::Tensor mean_cross_entropy(const at::Tensor& output, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(output, targets);
}

engine::PipelineBatch layers_batch(int step, int micro_batch, int data_rank) {
  const Batch batch = make_batch(4, kWidth, kWidth, seed_of(step, micro_batch, data_rank));
  return {batch.inputs, batch.targets};
}

std::vector<double> train_pipeline(engine::Options options, const engine::Ranks& world,
                                   int data_rank, LayersRun& trained) {
  std::vector<double> losses;
  int step = 0;
  const auto read = [&](int i) { return layers_batch(step, i, data_rank); };
  std::vector<engine::PipelineLayer> layers;
  for (int i = 0; i < 4; ++i) {
    layers.push_back({.name = "block" + std::to_string(i), .make = [i] { return make_block(i); }});
  }
  Pipeline pipeline(layers, mean_cross_entropy, options, {.group = world});
  for (step = 0; step < kSteps; ++step) {
    losses.push_back(pipeline.train(read));
  }
  EXPECT_TRUE(pipeline.last_step().applied);
  trained.validation = pipeline.evaluate(3, read);
  for (const shard::ParamSpec& param : pipeline.engine().inside().sharded().plan().params) {
    trained.masters[param.name] = pipeline.engine().master(param.name).clone();
  }
  return losses;
}

LayersRun piped_layers(engine::Options options, int stages) {
  LayersRun all;
  std::mutex mutex;
  ThreadMeetings meetings;
  options.mesh.pipe = stages;
  run_ranks(stages * kData, [&](comm::Group& group) {
    ThreadGroups maker(meetings, group.rank());
    LayersRun mine;
    mine.losses = train_pipeline(options, {group, maker}, group.rank() % kData, mine);
    const std::lock_guard lock(mutex);
    all.masters.merge(mine.masters);
    EXPECT_TRUE(all.losses.empty() || all.losses == mine.losses);
    EXPECT_TRUE(all.losses.empty() || all.validation == mine.validation);
    all.losses = mine.losses;
    all.validation = mine.validation;
  });
  return all;
}

TEST(PipelineOfLayers, HasTheBitsAndLossesOfTheModelInOnePiece) {
  engine::Options options = options_of(1, kMicroBatchesOfLayers);
  const Result whole = whole_model(options, kLayers);
  const LayersRun one = piped_layers(options, 1);
  for (const int stages : {2, 4}) {
    for (const auto schedule : {Kind::one_f_one_b, Kind::zb_h1}) {
      options.pipeline.schedule = schedule;
      const LayersRun found = piped_layers(options, stages);
      ASSERT_EQ(found.masters.size(), whole.masters.size());
      for (const auto& [name, value] : whole.masters) {
        EXPECT_TRUE(at::equal(found.masters.at(name), value)) << stages << " stages: " << name;
      }
      EXPECT_EQ(found.losses, one.losses);
      EXPECT_EQ(found.validation, one.validation);
    }
  }
}

TEST(PipelineOfLayers, RefusesFewerLayersThanStages) {
  engine::Options options = options_of(1, 1);
  options.mesh.pipe = 2;
  const auto make = [&](const engine::Options& how, engine::Ranks ranks) {
    Pipeline({{.name = "only", .make = [] { return make_block(0); }}}, mean_cross_entropy, how,
             {.group = ranks});
  };
  ThreadMeetings meetings;
  run_ranks(2, [&](comm::Group& group) {
    ThreadGroups maker(meetings, group.rank());
    try {
      make(options, {group, maker});
      ADD_FAILURE() << "a stage would be empty";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("1 layer cannot be cut into 2 stages"));
    }
  });
  EXPECT_THROW(make(options, {}), ConfigError);
}

}  // namespace
}  // namespace capstan::test
