// Attention on parts of a sequence against plain attention on the whole sequence.
#include "capstan/sequence_parallel/heads.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "tests/sequence_parallel/test_group.h"
#include "tests/support/run_ranks.h"

namespace capstan::sequence_parallel {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kSequence = 2;

struct Case {
  int query_heads = 8;
  int key_heads = 8;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

at::Tensor numbers(at::IntArrayRef sizes, double seed, const Case& one) {
  const at::Tensor counted = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return (counted * seed).sin().reshape(sizes).to(one.dtype).to(one.device);
}

Qkv whole(const Case& one) {
  return {.query = numbers({2, one.query_heads, 16, 8}, 1.7, one),
          .key = numbers({2, one.key_heads, 16, 8}, 2.3, one),
          .value = numbers({2, one.key_heads, 16, 8}, 3.1, one)};
}

at::Tensor causal(const Qkv& all) {
  return at::scaled_dot_product_attention(all.query, all.key, all.value, {}, 0.0, true,
                                          std::nullopt, true);
}

// Output and gradients, each [batch, heads, sequence, width].
Tensors run(const Qkv& given, const at::Tensor& weights, const Attention& attention) {
  Tensors leaves;
  for (const at::Tensor& tensor : {given.query, given.key, given.value}) {
    leaves.push_back(tensor.detach().clone().requires_grad_());
  }
  const at::Tensor output = attention({.query = leaves[0], .key = leaves[1], .value = leaves[2]});
  (output * weights).sum().backward();
  return {output.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

Tensors on_the_whole(const Case& one) {
  const Qkv all = whole(one);
  return run(all, numbers(all.query.sizes(), 0.9, one), causal);
}

// The same from ranks that have parts, put together.
Tensors on_parts(const Case& one, int ranks) {
  std::vector<Tensors> found(ranks);
  run_ranks(ranks, [&](comm::Group& group) {
    const Qkv all = whole(one);
    const auto part = [&](const at::Tensor& tensor) {
      return tensor.chunk(group.size(), kSequence)[group.rank()];
    };
    found[group.rank()] = run({part(all.query), part(all.key), part(all.value)},
                              part(numbers(all.query.sizes(), 0.9, one)), [&](const Qkv& parts) {
                                return attend(parts, causal, shared(group));
                              });
  });
  Tensors together;
  for (std::size_t i = 0; i < 4; ++i) {
    Tensors parts;
    for (const Tensors& rank : found) parts.push_back(rank[i]);
    together.push_back(at::cat(parts, kSequence));
  }
  return together;
}

void expect_close(const Tensors& found, const Tensors& wanted, double rounding) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), wanted[i].scalar_type());
    EXPECT_TRUE(at::allclose(found[i], wanted[i], rounding, rounding))
        << i << ": " << (found[i] - wanted[i]).abs().max().item<double>();
  }
}

TEST(Heads, AttentionOnPartsIsAttentionOnTheWhole) {
  for (const int ranks : {1, 2, 4}) {
    for (const int key_heads : {8, 4, 2, 1}) {  // fewer than ranks: copied
      const Case one{.key_heads = key_heads};
      expect_close(on_parts(one, ranks), on_the_whole(one), 1e-6);
      const Case wide{.key_heads = key_heads, .dtype = at::kDouble};
      expect_close(on_parts(wide, ranks), on_the_whole(wide), 1e-14);
    }
  }
}

TEST(Heads, WorksInLowPrecision) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Case one{.key_heads = 2, .dtype = dtype};
    expect_close(on_parts(one, 4), on_the_whole(one), 2e-2);
  }
}

TEST(Heads, ARunGivesTheSameBitsAgain) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Case one{.key_heads = 2, .dtype = dtype};
    const Tensors first = on_parts(one, 4);
    for (int again = 0; again < 3; ++again) {
      const Tensors second = on_parts(one, 4);
      for (std::size_t i = 0; i < first.size(); ++i)
        EXPECT_TRUE(at::equal(first[i], second[i])) << i;
    }
  }
}

TEST(Heads, EveryRankHasTheKeyHeadsOfItsQueryHeads) {
  run_ranks(4, [](comm::Group& group) {
    const at::Tensor query = at::arange(8).reshape({1, 8, 1, 1}).expand({1, 8, 2, 1});
    const at::Tensor key = at::arange(2).reshape({1, 2, 1, 1}).expand({1, 2, 2, 1});
    const Qkv mine =
        to_heads({query.to(at::kFloat), key.to(at::kFloat), key.to(at::kFloat)}, shared(group));
    EXPECT_EQ(mine.query.sizes(), at::IntArrayRef({1, 2, 8, 1}));
    EXPECT_EQ(mine.key.sizes(), at::IntArrayRef({1, 1, 8, 1}));
    EXPECT_TRUE(at::all(mine.key == mine.query.div(4, "floor").narrow(1, 0, 1)).item<bool>());
  });
}

TEST(Heads, TakesTwoCollectivesForwardAndTwoBackward) {
  run_ranks(2, [](comm::Group& group) {
    const Case one;
    const Qkv all = whole(one);
    const auto part = [&](const at::Tensor& tensor) {
      return tensor.chunk(2, kSequence)[group.rank()];
    };
    run({part(all.query), part(all.key), part(all.value)}, part(all.query),
        [&](const Qkv& parts) { return attend(parts, causal, shared(group)); });
    EXPECT_EQ(group.counters()[comm::OpKind::all_to_all].calls, 4);
  });
}

TEST(Heads, WorksOnTheGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a GPU";
  const Case one{.key_heads = 2, .device = at::kCUDA};
  expect_close(on_parts(one, 4), on_the_whole(one), 1e-4);
}

std::string message(int query_heads, int key_heads, int ranks) {
  try {
    share_heads(query_heads, key_heads, ranks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Heads, SharesThatAreNotEqualAreRefusedWithTheSizesThatDivide) {
  EXPECT_THAT(message(12, 12, 8),
              AllOf(HasSubstr("12 attention heads cannot be shared equally by 8 ranks"),
                    HasSubstr("choose a sequence_parallel_size of 1, 2, 3, 4, 6 or 12")));
  EXPECT_THAT(message(12, 4, 3),
              AllOf(HasSubstr("4 key heads can neither be shared equally by 3 ranks"),
                    HasSubstr("of 1, 2, 4 or 12")));
  EXPECT_THAT(message(7, 7, 2), HasSubstr("of 1 or 7"));
  EXPECT_EQ(message(12, 2, 6), "nothing");
  const HeadShare share = share_heads(12, 2, 6);
  EXPECT_EQ(share.query_heads, 2);
  EXPECT_EQ(share.key_heads, 1);
  EXPECT_EQ(share.copies, 3);
}

TEST(Heads, ShapesThatAreNotAttentionsAreRefused) {
  run_ranks(2, [](comm::Group& group) {
    const at::Tensor four = at::ones({1, 4, 2, 2});
    EXPECT_THROW(to_heads({four, four, at::ones({4, 2, 2})}, shared(group)), ConfigError);
    EXPECT_THROW(to_heads({four, four, at::ones({1, 2, 2, 2})}, shared(group)), ConfigError);
    EXPECT_EQ(group.counters()[comm::OpKind::all_to_all].calls, 0);
  });
}

}  // namespace
}  // namespace capstan::sequence_parallel
