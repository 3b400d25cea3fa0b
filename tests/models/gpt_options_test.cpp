#include "capstan/models/gpt_options.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/models/gpt_blueprint.h"

namespace capstan::models {
namespace {

TEST(GptOptions, CountsParametersAsPublished) {
  EXPECT_EQ(parameter_count(gpt_by_name("gpt2")), 124439808);
  EXPECT_EQ(parameter_count(gpt_by_name("gpt2-medium")), 354823168);
  EXPECT_EQ(parameter_count(gpt_by_name("gpt2-large")), 774030080);
  EXPECT_EQ(parameter_count(gpt_by_name("gpt2-xl")), 1557611200);
}

TEST(GptOptions, CountsTheWorkOfAToken) {
  const GptOptions xl = gpt_by_name("gpt2-xl");
  EXPECT_DOUBLE_EQ(flops_per_token(xl, 1024), 6.0 * 1557611200 + 12.0 * 48 * 1600 * 1024);
}

// By hand: 2 sequences of 3 tokens through one block of width 4, with 8 words in the vocabulary.
TEST(GptCosts, AreThoseCountedByHand) {
  const GptOptions options{.vocab = 8,
                           .context = 5,
                           .width = 4,
                           .layers = 1,
                           .heads = 2,
                           .recompute = {.enabled = true}};
  const std::vector<PartCost> parts =
      GptBlueprint(options).part_costs({.sequences = 2, .tokens = 3});
  struct Counted {
    const char* name;
    std::int64_t parameters;
    double forward;
    double recomputed;
  };
  const double c_attn = 2.0 * 6 * 4 * 12;
  const double scores_and_values = 2 * (2.0 * 2 * 3 * 3 * 4);
  const double c_proj = 2.0 * 6 * 4 * 4;
  const double mlp_half = 2.0 * 6 * 4 * 16;
  const double attention = c_attn + scores_and_values + c_proj;
  const double block = attention + 2 * mlp_half;
  const double logits = 2.0 * 6 * 4 * 128;  // of the padded vocabulary
  const std::int64_t in_block = 8 + (60 + 20) + 8 + (80 + 68);
  const std::vector<Counted> counted = {
      {"", 32 + 20 + in_block + 8, block + logits, block},
      {"transformer", 32 + 20 + in_block + 8, block + logits, block},
      {"wte", 32, logits, 0},
      {"wpe", 20, 0, 0},
      {"h.0", in_block, block, block},
      {"ln_1", 8, 0, 0},
      {"attn", 80, attention, attention},
      {"c_attn", 60, c_attn, c_attn},
      {"c_proj", 20, c_proj, c_proj},
      {"ln_2", 8, 0, 0},
      {"mlp", 148, 2 * mlp_half, 2 * mlp_half},
      {"c_fc", 80, mlp_half, mlp_half},
      {"c_proj", 68, mlp_half, mlp_half},
      {"ln_f", 8, 0, 0}};
  ASSERT_EQ(parts.size(), counted.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].name, counted[i].name);
    EXPECT_EQ(parts[i].parameters, counted[i].parameters) << parts[i].name;
    EXPECT_EQ(parts[i].forward_flops, counted[i].forward) << parts[i].name;
    EXPECT_EQ(parts[i].backward_flops, 2 * counted[i].forward) << parts[i].name;
    EXPECT_EQ(parts[i].recomputed_flops, counted[i].recomputed) << parts[i].name;
  }
  EXPECT_EQ(parts[0].parameters, parameter_count(options));
}

// The stages of a pipeline together have all of the model, and the table twice.
TEST(GptCosts, OfStagesAddUp) {
  const GptBlueprint whole({.vocab = 128, .context = 16, .width = 32, .layers = 4, .heads = 4});
  double forward = 0;
  std::int64_t parameters = 0;
  for (const BlockRange& part : {BlockRange{0, 3, true, false}, BlockRange{3, 4, false, true}}) {
    const PartCost costs = whole.with({.part = part})->part_costs({2, 16}).front();
    forward += costs.forward_flops;
    parameters += costs.parameters;
  }
  EXPECT_EQ(forward, whole.part_costs({2, 16}).front().forward_flops);
  EXPECT_EQ(parameters, whole.parameter_count() + 128 * 32);
}

TEST(GptOptions, PadsTheVocabularyInside) {
  EXPECT_EQ(GptOptions{.vocab = 50257}.padded_vocab(), 50304);
  EXPECT_EQ(GptOptions{.vocab = 256}.padded_vocab(), 256);
  EXPECT_EQ(GptOptions{.vocab = 1}.padded_vocab(), 128);
}

TEST(GptOptions, NamesTheNearestModel) {
  try {
    gpt_by_name("gpt2-lage");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.info().fix, testing::HasSubstr("did you mean gpt2-large?"));
  }
}

TEST(GptOptions, RefusesImpossibleSizes) {
  EXPECT_THROW(check({.width = 100, .heads = 3}), ConfigError);
  EXPECT_THROW(check({.vocab = 0}), ConfigError);
  EXPECT_THROW(check({.dropout = 1.0}), ConfigError);
  EXPECT_NO_THROW(check(gpt_by_name("gpt2-tiny")));
}

}  // namespace
}  // namespace capstan::models
