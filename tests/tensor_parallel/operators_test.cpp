// Each operator's forward and backward against sums and parts of whole tensors.
#include "capstan/tensor_parallel/operators.h"

#include <torch/csrc/autograd/autograd.h>

#include "capstan/base/error.h"
#include "capstan/tensor_parallel/collectives.h"
#include "tests/tensor_parallel/whole_and_parts.h"

namespace capstan::tensor_parallel {
namespace {

using test::kTokens;
using test::leaf;
using test::whole_tensor;

// Of one rank: [2, tokens, 12], different on every one.
at::Tensor values_of(int rank) {
  return whole_tensor({2, kTokens, 12}, 100 + static_cast<std::uint64_t>(rank));
}

at::Tensor sum_of_all(int ranks) {
  at::Tensor sum = values_of(0);
  for (int rank = 1; rank < ranks; ++rank) sum = sum + values_of(rank);
  return sum;
}

at::Tensor part(const at::Tensor& whole, comm::Group& group, std::int64_t dim) {
  return whole.chunk(group.size(), dim)[static_cast<std::size_t>(group.rank())];
}

at::Tensor joined(int ranks, std::int64_t dim) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(values_of(rank));
  return at::cat(all, dim);
}

// An operator's result, and the gradient of its input where the result's is `gradient`.
struct Through {
  at::Tensor result;
  at::Tensor gradient;
};
using Operator = std::function<at::Tensor(const at::Tensor&)>;
Through through(const Operator& apply, const at::Tensor& input, const at::Tensor& gradient) {
  const at::Tensor x = leaf(input);
  const at::Tensor result = apply(x);
  result.backward(gradient);
  return {result.detach(), x.grad()};
}

void on_ranks(const std::function<void(comm::Group&)>& check) {
  for (const int ranks : {1, 2, 3, 4}) run_ranks(ranks, check);
}

TEST(CopyIn, SumsTheGradient) {
  on_ranks([](comm::Group& group) {
    const at::Tensor x = whole_tensor({2, kTokens, 12}, 1);
    const auto [result, gradient] = through(
        [&](const at::Tensor& in) { return copy_in(group, in); }, x, values_of(group.rank()));
    EXPECT_TRUE(at::equal(result, x));
    EXPECT_TRUE(at::equal(gradient, sum_of_all(group.size())));
  });
}

TEST(ReduceOut, SumsTheValues) {
  on_ranks([](comm::Group& group) {
    const at::Tensor up = whole_tensor({2, kTokens, 12}, 1);
    const auto [result, gradient] = through(
        [&](const at::Tensor& in) { return reduce_out(group, in); }, values_of(group.rank()), up);
    EXPECT_TRUE(at::equal(result, sum_of_all(group.size())));
    EXPECT_TRUE(at::equal(gradient, up));
  });
}

TEST(LastDim, IsCutAndGathered) {
  on_ranks([](comm::Group& group) {
    const at::Tensor whole = whole_tensor({2, 3, kTokens}, 1);
    const at::Tensor other = whole_tensor({2, 3, kTokens}, 2);
    const Through cut = through([&](const at::Tensor& in) { return scatter_last(group, in); },
                                whole, part(other, group, -1));
    EXPECT_TRUE(at::equal(cut.result, part(whole, group, -1)));
    EXPECT_TRUE(at::equal(cut.gradient, other));
    const Through gathered = through([&](const at::Tensor& in) { return gather_last(group, in); },
                                     part(whole, group, -1), other);
    EXPECT_TRUE(at::equal(gathered.result, whole));
    EXPECT_TRUE(at::equal(gathered.gradient, part(other, group, -1)));
  });
}

TEST(Sequence, IsGatheredAndItsGradientSummedIntoParts) {
  on_ranks([](comm::Group& group) {
    for (const std::int64_t dim : {0, 1, -1}) {
      const at::Tensor x = values_of(group.rank());
      const at::Tensor whole = joined(group.size(), dim);
      std::vector<at::Tensor> ups;
      for (int rank = 0; rank < group.size(); ++rank) {
        ups.push_back(whole_tensor(whole.sizes(), 50 + static_cast<std::uint64_t>(rank)));
      }
      at::Tensor sum = ups[0];
      for (std::size_t rank = 1; rank < ups.size(); ++rank) sum = sum + ups[rank];
      const Through gathered =
          through([&](const at::Tensor& in) { return gather_sequence(group, in, dim); }, x,
                  ups[static_cast<std::size_t>(group.rank())]);
      EXPECT_TRUE(at::equal(gathered.result, whole)) << dim;
      EXPECT_TRUE(at::equal(gathered.gradient, part(sum, group, dim))) << dim;
    }
  });
}

TEST(Sequence, IsSummedIntoPartsAndItsGradientGathered) {
  on_ranks([](comm::Group& group) {
    const at::Tensor sum = sum_of_all(group.size());
    const at::Tensor up = whole_tensor({2, kTokens, 12}, 1);
    const Through reduced =
        through([&](const at::Tensor& in) { return reduce_scatter_sequence(group, in, 1); },
                values_of(group.rank()), part(up, group, 1));
    EXPECT_TRUE(at::equal(reduced.result, part(sum, group, 1)));
    EXPECT_TRUE(at::equal(reduced.gradient, up));
    const Through cut =
        through([&](const at::Tensor& in) { return scatter_sequence(group, in, 1); }, up,
                part(up, group, 1));
    EXPECT_TRUE(at::equal(cut.result, part(up, group, 1)));
    EXPECT_TRUE(at::equal(cut.gradient, up));
  });
}

// A reduction of a contiguous copy whose result is dropped would leave these as they were.
TEST(Operators, ReduceTensorsOfAnyStrides) {
  on_ranks([](comm::Group& group) {
    const at::Tensor turned = values_of(group.rank()).transpose(1, 2);
    const at::Tensor sum = sum_of_all(group.size()).transpose(1, 2);
    ASSERT_FALSE(turned.is_contiguous());
    EXPECT_TRUE(at::equal(reduce_out(group, turned), sum));
    EXPECT_TRUE(at::equal(reduce_scatter_sequence(group, turned, 2), part(sum, group, 2)));
    const at::Tensor x = leaf(at::zeros({3, 4}));
    // The gradient of a sum is one number expanded.
    copy_in(group, x).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({3, 4}, static_cast<float>(group.size()))));
    const at::Tensor y = leaf(at::zeros({12, 4}));
    copy_in(group, y).transpose(0, 1).backward(values_of(group.rank())[0].narrow(0, 0, 4));
    EXPECT_TRUE(at::equal(y.grad(), sum_of_all(group.size())[0].narrow(0, 0, 4).t()));
  });
}

TEST(Operators, LeaveTheirInputsAndGradientsAsTheyAre) {
  on_ranks([](comm::Group& group) {
    const at::Tensor x = values_of(group.rank());
    const at::Tensor before = x.clone();
    reduce_out(group, x);
    EXPECT_TRUE(at::equal(x, before));
    const at::Tensor up = values_of(group.rank());
    through([&](const at::Tensor& in) { return copy_in(group, in); }, x, up);
    EXPECT_TRUE(at::equal(up, values_of(group.rank())));
  });
}

TEST(Operators, RefuseALengthThatRanksDoNotDivide) {
  run_ranks(2, [](comm::Group& group) {
    EXPECT_THROW(scatter_last(group, at::zeros({2, 3})), ConfigError);
    EXPECT_THROW(reduce_scatter_sequence(group, at::zeros({3, 2}), 0), ConfigError);
  });
}

TEST(Operators, RefuseASecondDerivative) {
  run_ranks(2, [](comm::Group& group) {
    const at::Tensor x = leaf(at::ones({2}));
    const at::Tensor y = copy_in(group, x).sum();
    EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true),
                 ConfigError);
  });
}

}  // namespace
}  // namespace capstan::tensor_parallel
