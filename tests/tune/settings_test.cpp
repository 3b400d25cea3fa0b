// What can be tried with a configuration.
#include "capstan/tune/search_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/json/writer.h"

namespace capstan::tune {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Made {
  Space space;
  json::Value config;

  std::vector<std::string> axes() const {
    std::vector<std::string> names;
    for (const Axis& axis : space.axes) names.push_back(axis.name);
    return names;
  }
  std::vector<std::string> micros() const {
    std::vector<std::string> found;
    for (const MicroBatch& micro : space.micros) {
      found.push_back(std::to_string(micro.samples) + "x" +
                      std::to_string(micro.accumulation_steps));
    }
    return found;
  }
  // That the candidate's configuration is one.
  config::Resolved resolved(const Combination& candidate, int ranks) const {
    return config::resolve({.root = apply(space, candidate, config), .source = "candidate"},
                           {.world_size = ranks});
  }
};

Made make(const std::string& text, const SpaceFacts& facts = {.ranks = 2}) {
  const Alternatives alternatives = take_alternatives(json::read_document(text, "test"));
  const config::Resolved resolved =
      config::resolve(alternatives.config, {.world_size = facts.ranks});
  return {make_space(alternatives, resolved, facts), alternatives.config.root};
}

std::string message(const std::string& text) {
  try {
    make(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Settings, ABatchThatIsGivenStays) {
  const Made made = make("train_batch_size: 48");
  EXPECT_THAT(made.micros(), ElementsAre("1x24", "2x12", "3x8", "6x4", "12x2", "24x1"));
  EXPECT_THAT(make("{train_batch_size: 48, train_micro_batch_size_per_gpu: 4}").micros(),
              ElementsAre("1x24", "2x12", "3x8", "4x6", "6x4", "12x2", "24x1"));
}

TEST(Settings, OtherwiseItFollowsTheMicroBatch) {
  const Made made = make(
      "{train_micro_batch_size_per_gpu: 12, gradient_accumulation_steps: 2, autotuning: "
      "{max_train_micro_batch_size_per_gpu: 50, min_train_micro_batch_size_per_gpu: 2}}");
  EXPECT_THAT(made.micros(), ElementsAre("3x2", "6x2", "12x2", "24x2", "48x2"));
  EXPECT_EQ(made.space.first_micro, 2);
}

TEST(Settings, ALargestBatchGivesTheAccumulation) {
  const Made made = make(
      "{autotuning: {max_train_batch_size: 32, min_train_batch_size: 20, "
      "max_train_micro_batch_size_per_gpu: 64}}");
  EXPECT_THAT(made.micros(), ElementsAre("1x16", "2x8", "4x4", "8x2", "16x1"));
}

TEST(Settings, ListsAreTried) {
  const Made made = make(R"({"train_micro_batch_size_per_gpu": [4, 2], "gradient_clipping": [1, 2],
      "zero_optimization": {"stage": [2, 3], "overlap_comm": [true, false]},
      "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95], "lr": [1e-3, 1e-4]}}})");
  EXPECT_THAT(made.axes(), ElementsAre("stage", "gradient_clipping", "overlap_comm", "lr",
                                       "stage3_prefetch_bucket_size", "stage3_max_reuse_distance"));
  EXPECT_THAT(made.micros(), ElementsAre("2x1", "4x1"));
  const Combination last{{1, 1, 1, 1, 0, 0}, 1};
  const config::Resolved resolved = made.resolved(last, 2);
  EXPECT_EQ(resolved.engine.shard.stage, 3);
  EXPECT_EQ(resolved.engine.gradient_clipping, 2);
  EXPECT_EQ(resolved.engine.optimizer->hyper.lr, 1e-4);
  EXPECT_EQ(resolved.engine.optimizer->hyper.beta2, 0.95);
  EXPECT_EQ(resolved.engine.batch.train_samples, 8);
  EXPECT_EQ(tag(made.space, last), "z3_gas1_tmbspg4_gradient_clipping2_overlap_commfalse_lr0.0001");
}

TEST(Settings, AllStandsForEveryStage) {
  EXPECT_THAT(make("zero_optimization: {stage: \"all\"}").space.stages, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(make("{}").space.stages, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(make("{}").space.axes[0].reach, Reach::always);
  // A stage that is written down is left only where it must be.
  const Made fixed = make("zero_optimization: {stage: 2}");
  EXPECT_THAT(fixed.space.stages, ElementsAre(2, 0, 1, 3));
  EXPECT_EQ(fixed.space.axes[0].reach, Reach::when_needed);
  EXPECT_EQ(fixed.space.choices(false).size(), 1U);
  EXPECT_THAT(make("{}", {.ranks = 1}).space.stages, ElementsAre(0));
}

TEST(Settings, PlacementsAreThoseThatThisMachineHas) {
  const std::string disk =
      "zero_optimization: {stage: 3, offload_optimizer: {device: \"none\", nvme_path: \"/d\"}}";
  const auto placements = [](const Made& made) {
    std::vector<std::string> labels;
    for (const Axis& axis : made.space.axes) {
      for (const Setting& each : axis.settings) {
        if (axis.name == "placement") labels.push_back(each.label);
      }
    }
    return labels;
  };
  EXPECT_THAT(placements(make(disk)), ElementsAre("all on the device", "optimizer on nvme"));
  EXPECT_THAT(placements(make("zero_optimization: {stage: 3}", {.ranks = 2, .on_gpus = true})),
              ElementsAre("all on the device", "optimizer on the host",
                          "optimizer and parameters on the host"));
  EXPECT_TRUE(placements(make("{}")).empty());
}

TEST(Settings, EveryCandidateIsAConfiguration) {
  const SpaceFacts facts{.ranks = 4, .on_gpus = true, .own_models = true};
  const Made made = make("{train_batch_size: 16, bf16: {enabled: true}}", facts);
  int count = 0;
  for (const Choice& choice : made.space.choices(true)) {
    const Combination candidate{choice, count % static_cast<int>(made.space.micros.size())};
    const config::Resolved resolved = made.resolved(candidate, facts.ranks);
    EXPECT_EQ(resolved.engine.shard.stage, made.space.stage_of(choice));
    EXPECT_EQ(resolved.engine.batch.train_samples, 16);
    ++count;
  }
  EXPECT_GT(count, 30);
}

TEST(Settings, MistakesAreExplained) {
  EXPECT_THAT(message("train_batch_size: [8, 16]"), HasSubstr("train_batch_size is a list"));
  EXPECT_THAT(message("zero_optimization: {stage: [2, 7]}"), HasSubstr("stages from 0 to 3"));
  EXPECT_THAT(message("train_micro_batch_size_per_gpu: [0]"), HasSubstr("at least 1"));
  EXPECT_THAT(message("{train_batch_size: 16, autotuning: {min_train_micro_batch_size_per_gpu: "
                      "32, max_train_micro_batch_size_per_gpu: 64}}"),
              HasSubstr("no micro-batch size is possible"));
}

}  // namespace
}  // namespace capstan::tune
