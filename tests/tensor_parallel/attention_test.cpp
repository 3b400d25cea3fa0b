// Split attention against torch's on whole tensors.
#include "capstan/tensor_parallel/attention.h"

#include "tests/tensor_parallel/whole_and_parts.h"

namespace capstan::tensor_parallel {
namespace {

using test::expect_near;
using test::kTokens;
using test::leaf;
using test::part_of;
using test::whole_tensor;

// In fp64: gradients of keys are small differences of large sums.
at::Tensor exact_tensor(at::IntArrayRef shape, std::uint64_t seed) {
  return whole_tensor(shape, seed).to(at::kDouble);
}

constexpr std::int64_t kModelWidth = 10;
constexpr std::int64_t kHeadWidth = 3;

struct WholeAttention {
  explicit WholeAttention(const Heads& counts)
      : heads(counts),
        x(leaf(exact_tensor({2, kTokens, kModelWidth}, 1))),
        loss_of(exact_tensor({2, kTokens, kModelWidth}, 2)) {
    const std::int64_t query = heads.query * heads.width;
    const std::int64_t key = heads.key * heads.width;
    weights = {leaf(exact_tensor({query, kModelWidth}, 3)),
               leaf(exact_tensor({key, kModelWidth}, 4)),
               leaf(exact_tensor({key, kModelWidth}, 5)),
               leaf(exact_tensor({kModelWidth, query}, 6)),
               leaf(exact_tensor({query}, 7)),
               leaf(exact_tensor({key}, 8)),
               leaf(exact_tensor({key}, 9)),
               leaf(exact_tensor({kModelWidth}, 10))};
  }

  at::Tensor run() const {
    const auto by_head = [&](const at::Tensor& y, std::int64_t count) {
      const std::int64_t each = heads.query / count;
      return y.view({2, kTokens, count, heads.width}).transpose(1, 2).repeat_interleave(each, 1);
    };
    const at::Tensor mixed = at::scaled_dot_product_attention(
        by_head(at::linear(x, weights.query, weights.query_bias), heads.query),
        by_head(at::linear(x, weights.key, weights.key_bias), heads.key),
        by_head(at::linear(x, weights.value, weights.value_bias), heads.key), {}, 0.0, true);
    at::Tensor result =
        at::linear(mixed.transpose(1, 2).reshape({2, kTokens, -1}), weights.out, weights.out_bias);
    (result * loss_of).sum().backward();
    return result.detach();
  }

  Heads heads;
  at::Tensor x;
  at::Tensor loss_of;
  AttentionWeights weights;
};

std::vector<at::Tensor> leaves(const AttentionWeights& weights) {
  return {weights.query,      weights.key,      weights.value,      weights.out,
          weights.query_bias, weights.key_bias, weights.value_bias, weights.out_bias};
}

AttentionWeights map(const AttentionWeights& weights, const HeadCut& cut,
                     const std::function<at::Tensor(const at::Tensor&)>& value) {
  const auto queries = [&](const at::Tensor& each, std::size_t dim) {
    return part_of(value(each), cut_queries(each.sizes().vec(), dim, cut));
  };
  const auto keys = [&](const at::Tensor& each) {
    return part_of(value(each), cut_keys(each.sizes().vec(), 0, cut));
  };
  return {queries(weights.query, 0),
          keys(weights.key),
          keys(weights.value),
          queries(weights.out, 1),
          queries(weights.query_bias, 0),
          keys(weights.key_bias),
          keys(weights.value_bias),
          value(weights.out_bias).clone()};
}

// The result, x's gradient, those of the weights in the order of leaves().
std::vector<at::Tensor> run_split(const Region& region, const Heads& heads) {
  const WholeAttention whole(heads);
  const HeadCut cut = cut_heads(heads, region.place());
  const auto lies = [&](const at::Tensor& y) {
    if (!region.sequence_dim) return y;
    return y.chunk(region.group->size(),
                   *region.sequence_dim)[static_cast<std::size_t>(region.group->rank())];
  };
  const AttentionWeights mine =
      map(whole.weights, cut, [](const at::Tensor& each) { return each.detach(); });
  for (at::Tensor each : leaves(mine)) each.requires_grad_();
  const at::Tensor x = leaf(lies(whole.x.detach()));
  const at::Tensor result = attention(region, x, mine, cut);
  (result * lies(whole.loss_of)).sum().backward();
  std::vector<at::Tensor> results = {result.detach(), x.grad()};
  for (const at::Tensor& each : leaves(mine)) results.push_back(each.grad());
  return results;
}

void expect_as_whole(const Heads& heads, int ranks, std::optional<std::int64_t> dim = {}) {
  const WholeAttention whole(heads);
  const at::Tensor expected = whole.run();
  run_ranks(ranks, [&](comm::Group& group) {
    const Region region{&group, dim};
    const auto lies = [&](const at::Tensor& y) {
      return dim ? y.chunk(ranks, *dim)[static_cast<std::size_t>(group.rank())] : y;
    };
    const std::vector<at::Tensor> mine = run_split(region, heads);
    const std::string shape = std::to_string(heads.query) + " and " + std::to_string(heads.key) +
                              " heads over " + std::to_string(ranks) + ": ";
    expect_near(mine[0], lies(expected), shape + "result");
    expect_near(mine[1], lies(whole.x.grad()), shape + "x");
    const AttentionWeights gradients = map(whole.weights, cut_heads(heads, region.place()),
                                           [](const at::Tensor& each) { return each.grad(); });
    const std::vector<at::Tensor> slopes = leaves(gradients);
    for (std::size_t i = 0; i < slopes.size(); ++i) {
      expect_near(mine[i + 2], slopes[i], shape + "weight " + std::to_string(i));
    }
  });
}

TEST(SplitAttention, GivesWhatTheWholeLayerGives) {
  for (const int ranks : {1, 2, 3, 4}) expect_as_whole({12, 12, kHeadWidth}, ranks);
}

TEST(SplitAttention, TakesHeadsThatRanksDoNotDivide) {
  for (const int ranks : {2, 3, 4}) expect_as_whole({5, 5, kHeadWidth}, ranks);
}

TEST(SplitAttention, KeepsGroupedQueriesWithTheirKeys) {
  for (const int ranks : {1, 2, 3, 4}) expect_as_whole({12, 4, kHeadWidth}, ranks);
}

TEST(SplitAttention, SumsTheGradientOfAKeyHeadOverTheRanksThatHaveIt) {
  for (const int ranks : {2, 3, 4}) {
    expect_as_whole({12, 1, kHeadWidth}, ranks);
    // Over three ranks the one in the middle has both.
    if (ranks > 2) expect_as_whole({12, 2, kHeadWidth}, ranks);
  }
}

TEST(SplitAttention, WorksOverPartsOfTheSequence) {
  expect_as_whole({12, 12, kHeadWidth}, 3, 1);
  expect_as_whole({12, 2, kHeadWidth}, 4, 1);
}

TEST(SplitAttention, GivesTheSameBitsInEveryRun) {
  const auto run = [] {
    return test::on_each(
        4, [](comm::Group& group) { return run_split({&group, {}}, {12, 2, kHeadWidth}); });
  };
  test::expect_same_bits(run(), run());
}

// Else its copies would go apart.
TEST(SplitAttention, GivesEveryHolderOfAKeyHeadTheSameGradient) {
  const auto all = test::on_each(
      4, [](comm::Group& group) { return run_split({&group, {}}, {12, 2, kHeadWidth}); });
  for (const std::size_t key : {3U, 4U, 7U, 8U}) {
    EXPECT_TRUE(at::equal(all[0][key], all[1][key]));
    EXPECT_TRUE(at::equal(all[2][key], all[3][key]));
  }
}

}  // namespace
}  // namespace capstan::tensor_parallel
