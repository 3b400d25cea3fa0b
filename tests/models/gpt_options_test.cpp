#include "capstan/models/gpt_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"

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
