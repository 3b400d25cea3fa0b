// Cut along one dimension, put together along another, over any backend; gradients take the way
// back.
#include "capstan/sequence_parallel/exchange.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "capstan/base/error.h"
#include "tests/sequence_parallel/test_group.h"
#include "tests/support/foreign_backend.h"
#include "tests/support/run_ranks.h"

namespace capstan::sequence_parallel {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The same on every rank: a whole tensor, of which each has a part.
at::Tensor whole(at::ScalarType dtype = at::kFloat) {
  return at::arange(2 * 8 * 12 * 3).reshape({2, 8, 12, 3}).to(dtype);
}
at::Tensor part(const at::Tensor& tensor, int dim, const comm::Group& group) {
  return tensor.chunk(group.size(), dim)[group.rank()];
}

TEST(Exchange, PartsOfOneDimensionBecomePartsOfAnother) {
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [](comm::Group& group) {
      for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
        const at::Tensor all = whole(dtype);
        const at::Tensor heads =
            exchange(part(all, 2, group), {.split = 1, .join = 2}, shared(group));
        EXPECT_TRUE(at::equal(heads, part(all, 1, group)));
        EXPECT_EQ(heads.scalar_type(), dtype);
        const at::Tensor back = exchange(heads, {.split = -2, .join = -3}, shared(group));
        EXPECT_TRUE(at::equal(back, part(all, 2, group)));
      }
    });
  }
}

TEST(Exchange, LaterDimensionsAreCutAsEarlierOnesAre) {
  run_ranks(2, [](comm::Group& group) {
    const at::Tensor all = whole().permute({2, 0, 1, 3});  // nobody's memory is in order
    const at::Tensor heads = exchange(part(all, 0, group), {.split = 2, .join = 0}, shared(group));
    EXPECT_TRUE(at::equal(heads, part(all, 2, group)));
    EXPECT_TRUE(heads.is_contiguous());
    EXPECT_TRUE(
        at::equal(exchange(heads, {.split = 0, .join = 2}, shared(group)), part(all, 0, group)));
  });
}

TEST(Exchange, SeveralTensorsTakeOneCollective) {
  run_ranks(4, [](comm::Group& group) {
    const at::Tensor all = whole();
    const at::Tensor few = all.narrow(1, 0, 4) * 2;
    const Tensors moved = exchange({part(all, 2, group), part(few, 2, group), part(all, 2, group)},
                                   {.split = 1, .join = 2}, shared(group));
    EXPECT_TRUE(at::equal(moved[0], part(all, 1, group)));
    EXPECT_TRUE(at::equal(moved[1], part(few, 1, group)));
    EXPECT_TRUE(at::equal(moved[2], part(all, 1, group)));
    const comm::OpCounter counter = group.counters()[comm::OpKind::all_to_all];
    EXPECT_EQ(counter.calls, 1);
    EXPECT_EQ(counter.elems, (2 * all.numel() + few.numel()) / 4);
  });
}

TEST(Exchange, GradientsTakeTheWayBack) {
  run_ranks(4, [](comm::Group& group) {
    const at::Tensor all = whole();
    at::Tensor x = part(all, 2, group).clone().requires_grad_();
    at::Tensor y = (part(all, 2, group) * 3).clone().requires_grad_();
    const Tensors moved = exchange({x, y}, {.split = 1, .join = 2}, shared(group));
    (moved[0] * part(all.sin(), 1, group)).sum().backward();  // nothing comes from the second
    EXPECT_TRUE(at::equal(x.grad(), part(all.sin(), 2, group)));
    EXPECT_TRUE(at::equal(y.grad(), at::zeros_like(y)));
  });
}

TEST(Exchange, SecondDerivativesCrossRanksToo) {
  run_ranks(2, [](comm::Group& group) {
    const at::Tensor all = whole(at::kDouble) / 100;
    at::Tensor x = part(all, 2, group).clone().requires_grad_();
    const at::Tensor cubes = exchange(x, {.split = 1, .join = 2}, shared(group)).pow(3).sum();
    const auto first = torch::autograd::grad({cubes}, {x}, {}, true, true);
    const auto second = torch::autograd::grad({first[0].sum()}, {x});
    EXPECT_TRUE(at::allclose(second[0], 6 * x));
  });
}

TEST(Exchange, TheGraphKeepsTheGroup) {
  run_ranks(2, [](comm::Group& group) {
    bool dropped = false;
    at::Tensor x = at::ones({2, 2}).requires_grad_();
    at::Tensor sum;
    {
      const std::shared_ptr<comm::Group> kept(&group, [&](comm::Group*) { dropped = true; });
      sum = exchange(x, {.split = 0, .join = 1}, kept).sum();
    }
    EXPECT_FALSE(dropped);
    sum.backward();
    sum.reset();
    EXPECT_TRUE(dropped);
    EXPECT_TRUE(at::equal(x.grad(), at::ones({2, 2})));
  });
}

TEST(Exchange, WorksOverABackendThatIsNotOurs) {
  run_ranks(2, [](comm::Group& inner) {
    comm::Group group(c10::make_intrusive<test::ForeignBackend>(
        c10::intrusive_ptr<c10d::Backend>::reclaim_copy(&inner.backend()), "gloo"));
    const at::Tensor all = whole();
    at::Tensor x = part(all, 2, group).clone().requires_grad_();
    const at::Tensor heads = exchange(x, {.split = 1, .join = 2}, shared(group));
    EXPECT_TRUE(at::equal(heads, part(all, 1, group)));
    (heads * part(all, 1, group)).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), part(all, 2, group)));
  });
}

std::string message(const Tensors& tensors, Dims dims, comm::Group& group) {
  try {
    exchange(tensors, dims, shared(group));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Exchange, RefusesWhatCannotBeCutBeforeAnythingIsSent) {
  run_ranks(3, [](comm::Group& group) {
    EXPECT_THAT(
        message({at::ones({2, 4})}, {.split = 1, .join = 0}, group),
        AllOf(HasSubstr("dimension 1 of a tensor of shape [2, 4] cannot be cut into 3 equal parts"),
              HasSubstr("make its length a multiple of 3")));
    EXPECT_THAT(message({at::ones({2, 3})}, {.split = 1, .join = -1}, group),
                HasSubstr("dimension 1 would be both cut and put together"));
    EXPECT_THAT(message({at::ones({2, 3})}, {.split = 1, .join = 2}, group),
                HasSubstr("a tensor of 2 dimensions has no dimension 2"));
    EXPECT_THAT(
        message({at::ones({2, 3}), at::ones({2, 3}, at::kHalf)}, {.split = 1, .join = 0}, group),
        HasSubstr("tensors of fp32 on cpu and of fp16 on cpu cannot travel together"));
    EXPECT_EQ(group.counters()[comm::OpKind::all_to_all].calls, 0);
  });
}

}  // namespace
}  // namespace capstan::sequence_parallel
