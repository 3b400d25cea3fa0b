// The loss over split classes against torch's over whole rows.
#include "capstan/tensor_parallel/cross_entropy.h"

#include <limits>

#include "capstan/base/error.h"
#include "tests/tensor_parallel/whole_and_parts.h"

namespace capstan::tensor_parallel {
namespace {

using test::expect_near;
using test::leaf;
using test::whole_tensor;

constexpr std::int64_t kRows = 9;
constexpr std::int64_t kUsedClasses = 13;
constexpr std::int64_t kClasses = 22;  // over 4 ranks the last one has padding only

at::Tensor some_targets() {
  at::Tensor targets = at::arange(kRows).mul(5).remainder(kUsedClasses);
  targets[2] = -100;
  targets[7] = -100;
  return targets;
}

struct LossAndSlope {
  at::Tensor loss;
  at::Tensor slope;  // of the logits, [rows, kClasses]
};

LossAndSlope whole_loss(const at::Tensor& logits, const at::Tensor& targets, double smoothing) {
  const at::Tensor x = leaf(logits);
  const at::Tensor loss = at::cross_entropy_loss(x.narrow(1, 0, kUsedClasses).to(at::kFloat),
                                                 targets, {}, at::Reduction::Mean,
                                                 /*ignore_index=*/-100, smoothing);
  (loss * 3).backward();
  return {loss.detach(), x.grad()};
}

LossAndSlope split_loss(comm::Group& group, const at::Tensor& logits, const at::Tensor& targets,
                        double smoothing = 0) {
  const VocabCut cut = cut_vocabulary(kUsedClasses, kClasses, {group.rank(), group.size()});
  const at::Tensor x = leaf(logits.narrow(1, cut.rows.begin, cut.rows.size()));
  const at::Tensor loss = cross_entropy(group, x, targets, cut, {.label_smoothing = smoothing});
  (loss * 3).backward();
  return {loss.detach(), x.grad()};
}

void expect_as_whole(const at::Tensor& logits, const at::Tensor& targets, double smoothing = 0) {
  const LossAndSlope expected = whole_loss(logits, targets, smoothing);
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](comm::Group& group) {
      const auto [loss, slope] = split_loss(group, logits, targets, smoothing);
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      EXPECT_EQ(slope.scalar_type(), logits.scalar_type());
      expect_near(loss, expected.loss, "loss");
      const VocabCut cut = cut_vocabulary(kUsedClasses, kClasses, {group.rank(), group.size()});
      expect_near(slope, expected.slope.narrow(1, cut.rows.begin, cut.rows.size()), "slope");
    });
  }
}

TEST(SplitCrossEntropy, IsThatOfWholeRows) {
  expect_as_whole(whole_tensor({kRows, kClasses}, 1), some_targets());
}

TEST(SplitCrossEntropy, SmoothsLabelsAsTorchDoes) {
  expect_as_whole(whole_tensor({kRows, kClasses}, 1), some_targets(), 0.1);
}

TEST(SplitCrossEntropy, IsFiniteForLargeLogits) {
  expect_as_whole(whole_tensor({kRows, kClasses}, 1).mul(1000), some_targets());
}

// A class that cannot be, as of a mask.
TEST(SplitCrossEntropy, TakesLogitsOfMinusInfinity) {
  at::Tensor logits = whole_tensor({kRows, kClasses}, 1);
  logits.narrow(1, 6, 5).fill_(-std::numeric_limits<float>::infinity());
  expect_as_whole(logits, at::arange(kRows).remainder(6));
}

TEST(SplitCrossEntropy, IsComputedInFp32WhateverTheLogits) {
  const at::Tensor logits = whole_tensor({kRows, kClasses}, 1).to(at::kBFloat16);
  const LossAndSlope expected = whole_loss(logits, some_targets(), 0);
  run_ranks(2, [&](comm::Group& group) {
    const auto [loss, slope] = split_loss(group, logits, some_targets());
    expect_near(loss, expected.loss, "loss");
    EXPECT_EQ(slope.scalar_type(), at::kBFloat16);
  });
}

TEST(SplitCrossEntropy, HasTheSameBitsOnEveryRankAndInEveryRun) {
  const auto run = [] {
    return test::on_each(4, [](comm::Group& group) {
      const auto [loss, slope] =
          split_loss(group, whole_tensor({kRows, kClasses}, 1), some_targets());
      return std::vector<at::Tensor>{loss, slope};
    });
  };
  const test::PerRank first = run();
  test::expect_same_bits(first, run());
  for (const auto& mine : first) EXPECT_TRUE(at::equal(mine[0], first[0][0]));
}

TEST(SplitCrossEntropy, GathersTwoNumbersOfARowInsteadOfLogits) {
  run_ranks(2, [](comm::Group& group) {
    split_loss(group, whole_tensor({kRows, kClasses}, 1), some_targets());
    const comm::Counters counters = group.counters();
    EXPECT_EQ(counters[comm::OpKind::all_gather].calls, 1);
    EXPECT_EQ(counters[comm::OpKind::all_gather].elems, 2 * 2 * kRows);
    EXPECT_EQ(counters[comm::OpKind::all_reduce].calls, 0);
  });
}

TEST(SplitCrossEntropy, IsNotANumberWhereAllTargetsAreLeftOut) {
  run_ranks(2, [](comm::Group& group) {
    const auto [loss, slope] =
        split_loss(group, whole_tensor({kRows, kClasses}, 1), at::full({kRows}, -100, at::kLong));
    EXPECT_TRUE(loss.isnan().item<bool>());
  });
}

TEST(SplitCrossEntropy, RefusesATargetWithoutAClassAndShapesThatDoNotFit) {
  run_ranks(2, [](comm::Group& group) {
    const VocabCut cut = cut_vocabulary(kUsedClasses, kClasses, {group.rank(), group.size()});
    const at::Tensor logits = at::zeros({kRows, cut.rows.size()});
    for (const std::int64_t target : {std::int64_t{-1}, kUsedClasses}) {
      EXPECT_THROW(cross_entropy(group, logits, at::full({kRows}, target), cut), ConfigError);
    }
    EXPECT_THROW(cross_entropy(group, logits, at::zeros({kRows + 1}, at::kLong), cut), ConfigError);
    EXPECT_THROW(cross_entropy(group, logits.narrow(1, 0, 3), some_targets(), cut), ConfigError);
  });
}

}  // namespace
}  // namespace capstan::tensor_parallel
