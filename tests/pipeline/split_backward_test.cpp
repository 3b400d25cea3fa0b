// Halves of a backward: what a whole one gives, with every kernel once.
#include "capstan/pipeline/split_backward.h"

#include <cstdlib>

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

namespace capstan::test {
namespace {

using pipeline::SplitBackward;
using pipeline::Tensors;

at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::randn(sizes).to(dtype).requires_grad_();
}

struct Net {
  explicit Net(at::ScalarType dtype = at::kFloat)
      : x(leaf({3, 8}, dtype)),
        w1(leaf({8, 8}, dtype)),
        b1(leaf({8}, dtype)),
        w2(leaf({8, 8}, dtype)),
        gain(leaf({8}, dtype)),
        shift(leaf({8}, dtype)) {}

  at::Tensor run() const {
    at::Tensor y = at::layer_norm(x, {8}, gain, shift);
    y = at::gelu(at::linear(y, w1, b1)) + x;  // two ways to the input
    return at::matmul(y, w2.t()).softmax(-1);
  }
  Tensors params() const { return {w1, b1, w2, gain, shift}; }

  at::Tensor x, w1, b1, w2, gain, shift;
};

TEST(SplitBackward, HasTheBitsOfAWholeOne) {
  at::manual_seed(5);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Net net(dtype);
    const at::Tensor gradient = at::randn({3, 8}).to(dtype);
    torch::autograd::backward({net.run()}, {gradient});
    Tensors expected;
    for (const at::Tensor& each : net.params()) {
      expected.push_back(each.grad().clone());
      each.mutable_grad().reset();
    }
    const at::Tensor of_input = net.x.grad().clone();
    net.x.mutable_grad().reset();

    std::optional<SplitBackward> split = SplitBackward::of({net.run()}, {net.x, at::ones({2})});
    ASSERT_TRUE(split.has_value());
    for (const at::Tensor& each : net.params()) {
      EXPECT_TRUE(split->ends_at(torch::autograd::impl::grad_accumulator(each).get()));
    }
    const Tensors found = split->inputs({gradient});
    ASSERT_EQ(found.size(), 2u);
    EXPECT_TRUE(at::equal(found[0], of_input));
    EXPECT_FALSE(found[1].defined());  // it needs none
    for (const at::Tensor& each : net.params()) EXPECT_FALSE(each.grad().defined());
    split->weights();
    EXPECT_FALSE(net.x.grad().defined());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(net.params()[i].grad(), expected[i])) << "parameter " << i;
    }
  }
}

// Which gradients a function is asked for, each time that it runs.
struct Counts final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    asked->push_back({task_should_compute_output(0), task_should_compute_output(1)});
    return {gradients[0], gradients[0].sum(0)};
  }
  std::vector<std::pair<bool, bool>>* asked = nullptr;
};

TEST(SplitBackward, AsksForEveryGradientOnce) {
  const at::Tensor x = leaf({3, 8});
  const at::Tensor bias = leaf({8});
  std::vector<std::pair<bool, bool>> asked;
  at::Tensor y = (x + bias).detach();
  auto node = std::shared_ptr<Counts>(new Counts, torch::autograd::deleteNode);
  node->asked = &asked;
  node->set_next_edges(torch::autograd::collect_next_edges(x, bias));
  torch::autograd::set_history(y, node);
  std::optional<SplitBackward> split = SplitBackward::of({y}, {x});
  ASSERT_TRUE(split.has_value());
  split->inputs({at::ones({3, 8})});
  split->weights();
  const std::vector<std::pair<bool, bool>> expected = {{true, false}, {false, true}};
  EXPECT_EQ(asked, expected);
  EXPECT_TRUE(at::equal(bias.grad(), at::full({8}, 3.0)));
}

TEST(SplitBackward, IsNotThereWhereHalvesWouldDiffer) {
  const Net net;
  const at::Tensor twice = at::matmul(at::matmul(net.x, net.w1).relu(), net.w1);
  EXPECT_FALSE(SplitBackward::of({twice}, {net.x})) << "a weight that is used twice";
  EXPECT_FALSE(SplitBackward::of({net.w1.square()}, {net.x})) << "no output depends on an input";
  EXPECT_FALSE(SplitBackward::of({net.run(), net.w1.sum()}, {net.x})) << "one output does not";
}

}  // namespace
}  // namespace capstan::test
