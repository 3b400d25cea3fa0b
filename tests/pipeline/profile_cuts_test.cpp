#include "capstan/pipeline/profile_cuts.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/pipeline/activations.h"

namespace capstan::pipeline {
namespace {

using ::testing::HasSubstr;
using Cuts = std::vector<std::int64_t>;

struct Result {
  double slowest = 0;
  std::int64_t fullest = 0;
};

// Of a pipeline with one chunk that runs 1F1B.
Result result_of(const std::vector<Layer>& layers, const Cuts& cuts, int micro_batches) {
  Result result;
  const int stages = static_cast<int>(cuts.size()) - 1;
  for (int stage = 0; stage < stages; ++stage) {
    double seconds = 0;
    std::int64_t bytes = 0;
    for (std::int64_t i = cuts[stage]; i < cuts[stage + 1]; ++i) {
      seconds += layers[i].seconds;
      bytes += layers[i].state_bytes +
               std::min(stages - stage, micro_batches) * layers[i].activation_bytes;
    }
    result.slowest = std::max(result.slowest, seconds);
    result.fullest = std::max(result.fullest, bytes);
  }
  return result;
}

// By trying every way to cut. Slower than any where none fits.
Result best_of(const std::vector<Layer>& layers, const Target& target) {
  Result best = {std::numeric_limits<double>::infinity(), 0};
  Cuts cuts = {0};
  const std::function<void(int)> cut = [&](int left) {
    if (left == 0) {
      cuts.push_back(std::ssize(layers));
      const Result result = result_of(layers, cuts, target.shape.micro_batches);
      const bool better = result.slowest < best.slowest ||
                          (result.slowest == best.slowest && result.fullest < best.fullest);
      if (result.fullest <= target.stage_bytes && better) best = result;
      cuts.pop_back();
      return;
    }
    for (std::int64_t at = cuts.back() + 1; at + left <= std::ssize(layers); ++at) {
      cuts.push_back(at);
      cut(left - 1);
      cuts.pop_back();
    }
  };
  cut(target.shape.stages - 1);
  return best;
}

std::vector<Layer> some_layers(std::uint32_t& state, int count) {
  const auto random = [&] { return (state = state * 1664525U + 1013904223U) >> 28U; };
  std::vector<Layer> layers(count);
  for (Layer& layer : layers) {
    layer.seconds = 1 + random();
    layer.state_bytes = 1 + random();
    layer.activation_bytes = random();
  }
  return layers;
}

TEST(ProfileCuts, AreTheFastestThatFit) {
  std::uint32_t state = 5;
  int refused = 0;
  for (int round = 0; round < 150; ++round) {
    const std::vector<Layer> layers = some_layers(state, 8);
    const Target target = {.shape = {.stages = 1 + round % 4, .micro_batches = 1 + round % 7},
                           .stage_bytes = 60 + 10 * (round % 11)};
    const Result best = best_of(layers, target);
    if (best.slowest == std::numeric_limits<double>::infinity()) {
      ASSERT_THROW(profile_cuts(layers, target), ConfigError);
      ++refused;
      continue;
    }
    const Cuts cuts = profile_cuts(layers, target);
    const Result found = result_of(layers, cuts, target.shape.micro_batches);
    ASSERT_LE(found.fullest, target.stage_bytes);
    ASSERT_EQ(found.slowest, best.slowest);
    ASSERT_EQ(found.fullest, best.fullest);
  }
  EXPECT_GT(refused, 15);
  EXPECT_LT(refused, 120);
}

// The first stage of 1F1B holds most activations, so it gets fewer layers where memory is short.
TEST(ProfileCuts, TradeTimeForMemory) {
  const std::vector<Layer> layers(12, {.seconds = 1, .activation_bytes = 10, .state_bytes = 10});
  const auto cut = [&](std::int64_t bytes) {
    return profile_cuts(layers, {.shape = {.stages = 3, .micro_batches = 8}, .stage_bytes = bytes});
  };
  EXPECT_EQ(cut(1000), (Cuts{0, 4, 8, 12}));
  EXPECT_EQ(cut(159), (Cuts{0, 3, 7, 12}));
}

std::string refusal(const std::vector<Layer>& layers, const Target& target) {
  try {
    profile_cuts(layers, target);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ProfileCuts, SayWhichStageDoesNotFitAndWhatWould) {
  std::vector<Layer> layers(8, {.seconds = 1, .state_bytes = 2 << 20});
  Target target = {.shape = {.stages = 2, .micro_batches = 4}, .stage_bytes = 6 << 20};
  const std::string text = refusal(layers, target);
  EXPECT_THAT(text, HasSubstr("does not fit into 2 stages of 6 MiB: at the best cut, stage 0 needs "
                              "8 MiB for layers 0 to 3"));
  EXPECT_THAT(text, ::testing::EndsWith("give each stage 8 MiB, or use 3 stages"));
  target.stage_bytes = 8 << 20;
  EXPECT_EQ(refusal(layers, target), "");
  target = {.shape = {.stages = 3, .micro_batches = 4}, .stage_bytes = 6 << 20};
  EXPECT_EQ(refusal(layers, target), "");

  layers[5].state_bytes = 100 << 20;
  const std::string large = refusal(layers, target);
  EXPECT_THAT(large, HasSubstr("stage 1 needs 100 MiB for layer 5\n"));
  EXPECT_THAT(large, ::testing::EndsWith("give each stage 100 MiB"));

  layers[5].state_bytes = 0;
  layers[5].activation_bytes = 50 << 20;  // best on the last stage, which holds them once
  EXPECT_THAT(refusal(layers, target),
              ::testing::EndsWith("give each stage 54 MiB, or recompute activations"));

  target.shape.stages = 9;
  EXPECT_THAT(refusal(layers, target), HasSubstr("8 layers for 9 parts of a pipeline"));
}

TEST(ProfileCuts, WithChunksEveryStageFits) {
  std::uint32_t state = 3;
  int cuts_made = 0;
  for (int round = 0; round < 60; ++round) {
    const std::vector<Layer> layers = some_layers(state, 12);
    const Target target = {.schedule = Kind::interleaved,
                           .shape = {.stages = 2, .micro_batches = 4, .chunks = 2 + round % 2},
                           .stage_bytes = 400 + 40 * (round % 5)};
    const Schedule schedule = make_schedule(target.schedule, target.shape);
    if (!refusal(layers, target).empty()) continue;
    ++cuts_made;
    const Cuts cuts = profile_cuts(layers, target);
    ASSERT_EQ(std::ssize(cuts), target.shape.parts() + 1);
    for (int stage = 0; stage < target.shape.stages; ++stage) {
      std::int64_t bytes = 0;
      std::int64_t most = 0;
      const auto sum = [&](int chunk, auto field) {
        const int part = target.shape.part(stage, chunk);
        std::int64_t total = 0;
        for (std::int64_t i = cuts[part]; i < cuts[part + 1]; ++i) total += layers[i].*field;
        return total;
      };
      for (int chunk = 0; chunk < target.shape.chunks; ++chunk) {
        bytes += sum(chunk, &Layer::state_bytes);
      }
      for (const Instruction& instruction : schedule.stages[stage]) {
        const std::int64_t saved = sum(instruction.chunk, &Layer::activation_bytes);
        if (instruction.op == Op::forward) bytes += saved;
        if (instruction.op == Op::backward) bytes -= saved;
        most = std::max(most, bytes);
      }
      ASSERT_LE(most, target.stage_bytes);
    }
  }
  EXPECT_GT(cuts_made, 10);
}

}  // namespace
}  // namespace capstan::pipeline
