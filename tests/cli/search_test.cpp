#include "capstan/cli/generate/search.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/cli/generate/decode.h"

namespace capstan::cli::generate {
namespace {

using testing::ElementsAre;

// A model that always goes on with the next number, and remembers what it was given.
struct Counting {
  std::int64_t longest = 0;
  int passes = 0;
  std::size_t most = 0;
  std::vector<at::Tensor> operator()(std::span<models::Sequences> all) {
    ++passes;
    most = std::max(most, all.size());
    std::vector<at::Tensor> logits;
    for (models::Sequences& each : all) {
      longest = std::max(longest, each.ids.size(1));
      const at::Tensor last = each.ids.select(1, each.ids.size(1) - 1);
      logits.push_back(at::one_hot((last + 1).remainder(10), 10).to(at::kFloat) * 100);
    }
    return logits;
  }
};

std::vector<Tokens> run(Counting& model, const std::vector<Tokens>& prompts,
                        const SearchOptions& options, const DecodeOptions& how) {
  std::vector<std::unique_ptr<Search>> searches;
  for (const Tokens& prompt : prompts) searches.push_back(make_search(prompt, options));
  run_searches(
      searches, [&](std::span<models::Sequences> all) { return model(all); },
      [](bool mine) { return mine; }, how);
  std::vector<Tokens> texts;
  for (const auto& search : searches) texts.push_back(search->best());
  return texts;
}

TEST(Search, GoesOnFromThePromptWithinTheContext) {
  Counting model;
  const auto texts = run(model, {{3, 4}}, {.max_new_tokens = 5}, {.context = 3});
  EXPECT_THAT(texts, ElementsAre(Tokens{3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(model.longest, 3);
}

TEST(Search, EndsWithAnEndTokenAndNeverKeepsMoreInWorkThanTheBatch) {
  Counting model;
  const SearchOptions options{.max_new_tokens = 4, .ends = {6}};
  const auto texts = run(model, {{5}, {1}, {4}, {9, 3}}, options, {.batch = 2});
  EXPECT_THAT(texts, ElementsAre(Tokens{5, 6}, Tokens{1, 2, 3, 4, 5}, Tokens{4, 5, 6},
                                 Tokens{9, 3, 4, 5, 6}));
  EXPECT_EQ(model.most, 2);
}

TEST(Search, MakesPassesForOthersUntilTheyAreDone) {
  Counting model;
  int others = 7;
  run_searches(
      {}, [&](std::span<models::Sequences> all) { return model(all); },
      [&](bool mine) { return mine || others-- > 0; }, {});
  EXPECT_EQ(model.passes, 7);
  EXPECT_EQ(model.most, 0);
}

TEST(Search, DrawsByItsSeedOnlyAndFromTheLikeliest) {
  const at::Tensor logits = at::arange(10, at::kFloat).unsqueeze(0) * 0.01;
  const auto draw = [&](std::uint64_t seed, const DrawOptions& how) {
    const auto search =
        make_search({0}, {.max_new_tokens = 50, .sample = true, .draw = how, .seed = seed});
    while (!search->done()) search->advance(logits);
    Tokens text = search->best();
    text.erase(text.begin());
    return text;
  };
  at::manual_seed(1);
  const Tokens first = draw(5, {.top_k = 4});
  at::manual_seed(2);
  EXPECT_EQ(draw(5, {.top_k = 4}), first);
  EXPECT_NE(draw(6, {.top_k = 4}), first);
  EXPECT_THAT(first, testing::Each(testing::Ge(6U)));
  // Ten tokens of nearly 0.1 each: three are needed for 0.25.
  EXPECT_THAT(draw(5, {.top_k = 0, .top_p = 0.25}), testing::Each(testing::Ge(7U)));
  EXPECT_THAT(draw(5, {.top_p = 0}), testing::Each(9U));
  EXPECT_THAT(draw(5, {.temperature = 1e-4}), testing::Each(9U));
}

TEST(Search, BeamsFindATextThatTheLikeliestFirstTokenHides) {
  // Token 0 is likelier at first; what follows 1 is certain, what follows 0 is spread out.
  const auto search = make_search({7}, {.max_new_tokens = 2, .beams = 2});
  EXPECT_THAT(search->advance(at::tensor({0.55F, 0.45F, 0.0F, 0.0F}).log().unsqueeze(0)),
              ElementsAre(0, 0));
  EXPECT_THAT(search->rows(), ElementsAre(Tokens{7, 0}, Tokens{7, 1}));
  search->advance(
      at::tensor({0.25F, 0.25F, 0.25F, 0.25F, 0.0F, 0.0F, 0.99F, 0.01F}).log().view({2, 4}));
  EXPECT_TRUE(search->done());
  EXPECT_THAT(search->best(), ElementsAre(7, 1, 2));
}

}  // namespace
}  // namespace capstan::cli::generate
