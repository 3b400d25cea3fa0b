#include "capstan/cli/train/sample_text.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::cli::train {
namespace {

using Tokens = std::vector<data::Token>;

// A model that always goes on with the next number, and remembers the longest input it saw.
struct Counting {
  std::int64_t longest = 0;
  at::Tensor operator()(const at::Tensor& ids) {
    longest = std::max(longest, ids.size(1));
    return at::one_hot((ids + 1).remainder(10), 10).to(at::kFloat) * 100;
  }
};

TEST(SampleTokens, GoesOnFromThePromptWithinTheContext) {
  Counting model;
  const Tokens tokens = sample_tokens([&](const at::Tensor& ids) { return model(ids); }, {3, 4},
                                      at::kCPU, {.count = 5, .context = 3});
  EXPECT_THAT(tokens, testing::ElementsAre(3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(model.longest, 3);
}

TEST(SampleTokens, DependsOnItsSeedOnlyAndDrawsFromTheLikeliest) {
  const auto flat = [](const at::Tensor& ids) {
    return at::arange(10, at::kFloat).expand({1, ids.size(1), 10}) * 0.01;
  };
  const auto draw = [&](std::uint64_t seed) {
    return sample_tokens(flat, {0}, at::kCPU, {.count = 50, .top_k = 4, .seed = seed});
  };
  at::manual_seed(1);
  const Tokens first = draw(5);
  at::manual_seed(2);
  EXPECT_EQ(draw(5), first);
  EXPECT_NE(draw(6), first);
  EXPECT_THAT(Tokens(first.begin() + 1, first.end()), testing::Each(testing::Ge(6U)));
}

}  // namespace
}  // namespace capstan::cli::train
