#include "capstan/recompute/checkpoint.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "capstan/base/error.h"

namespace capstan::recompute {
namespace {

// Two weights around a GELU and a dropout, made anew from a fixed seed.
struct Layers {
  explicit Layers(bool frozen = false) {
    at::manual_seed(11);
    first = at::randn({8, 16}).set_requires_grad(!frozen);
    second = at::randn({16, 8}).set_requires_grad(true);
  }
  at::Tensor forward(const at::Tensor& x) const {
    return at::dropout(at::gelu(at::matmul(x, first)), 0.4, /*train=*/true).matmul(second);
  }
  at::Tensor first;
  at::Tensor second;
};

struct Gradients {
  at::Tensor loss, input, first, second;
};

enum class Way { keep, checkpoint, nested };

at::Tensor run_layers(const Layers& layers, const at::Tensor& x, Way way) {
  const auto plain = [&layers](const at::Tensor& in) { return layers.forward(in); };
  if (way == Way::keep) return plain(plain(x));
  if (way == Way::checkpoint) return checkpoint(plain, checkpoint(plain, x));
  return checkpoint(
      [plain](const at::Tensor& in) { return checkpoint(plain, checkpoint(plain, in)); }, x);
}

Gradients gradients(Way way, bool input_needs_grad = true, bool frozen = false) {
  const Layers layers(frozen);
  at::Tensor x = at::randn({4, 8}).set_requires_grad(input_needs_grad);
  at::manual_seed(3);
  const at::Tensor loss = run_layers(layers, x, way).square().sum();
  loss.backward();
  return {loss.detach(), x.grad(), layers.first.grad(), layers.second.grad()};
}

void expect_same(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.defined(), b.defined());
  EXPECT_TRUE(!a.defined() || at::equal(a, b));
}

void expect_same(const Gradients& a, const Gradients& b) {
  expect_same(a.loss, b.loss);
  expect_same(a.input, b.input);
  expect_same(a.first, b.first);
  expect_same(a.second, b.second);
}

TEST(Checkpoint, GivesTheSameBitsAsKeepingActivationsWithDropout) {
  const Gradients kept = gradients(Way::keep);
  expect_same(kept, gradients(Way::checkpoint));
  expect_same(kept, gradients(Way::nested));
}

TEST(Checkpoint, ReachesParametersWhenNoInputNeedsAGradient) {
  const Gradients recomputed = gradients(Way::checkpoint, /*input_needs_grad=*/false);
  ASSERT_TRUE(recomputed.second.defined());
  expect_same(gradients(Way::keep, false), recomputed);
}

TEST(Checkpoint, LeavesFrozenParametersAlone) {
  const Gradients recomputed = gradients(Way::nested, true, /*frozen=*/true);
  EXPECT_FALSE(recomputed.first.defined());
  expect_same(gradients(Way::keep, true, true), recomputed);
}

TEST(Checkpoint, DoesNotDisturbTheGeneratorInBackward) {
  const Layers layers;
  const at::Tensor x = at::randn({4, 8});
  const at::Tensor y = run_layers(layers, x, Way::checkpoint).sum();
  at::manual_seed(5);
  y.backward();
  const at::Tensor after = at::rand({3});
  at::manual_seed(5);
  EXPECT_TRUE(at::equal(after, at::rand({3})));
}

TEST(Checkpoint, KeepsNoActivationBetweenForwardAndBackward) {
  const Layers layers;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> hidden{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  const auto function = [&](const at::Tensor& in) {
    const at::Tensor product = at::matmul(in, layers.first);
    hidden = product.getIntrusivePtr();
    return at::gelu(product).sum();
  };
  const at::Tensor x = at::randn({4, 8}).set_requires_grad(true);
  const at::Tensor kept = function(x);
  EXPECT_FALSE(hidden.expired());
  const at::Tensor checkpointed = checkpoint(function, x);
  EXPECT_TRUE(hidden.expired());
  checkpointed.backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_TRUE(hidden.expired());
}

TEST(Checkpoint, WorksWhenParametersAreReleasedBetweenForwardAndBackward) {
  const auto run = [](bool release) {
    Layers layers;
    const at::Tensor whole = layers.first.detach().clone();
    const at::Tensor x = at::ones({2, 8}).set_requires_grad(true);
    at::manual_seed(3);
    const at::Tensor loss = checkpoint(
                                [&](const at::Tensor& in) {
                                  if (release) layers.first.set_data(whole);
                                  return layers.forward(in);
                                },
                                x)
                                .sum();
    if (release) layers.first.set_data(at::empty({0}));
    loss.backward();
    return Gradients{loss.detach(), x.grad(), layers.first.grad(), layers.second.grad()};
  };
  expect_same(run(false), run(true));
}

// Inputs: a float, an undefined tensor, integers; outputs: two floats, integers, the input itself.
TEST(Checkpoint, TakesAndGivesTensorsOfAnyKind) {
  const at::Tensor weight = at::randn({5, 3}).set_requires_grad(true);
  const auto function = [&weight](const Tensors& in) -> Tensors {
    EXPECT_FALSE(in[1].defined());
    const at::Tensor rows = at::embedding(weight, in[2]);
    return {in[0] * rows, rows.sum(), in[2] + 1, in[0], at::Tensor()};
  };
  const at::Tensor x = at::randn({2, 3}).set_requires_grad(true);
  const at::Tensor ids = at::tensor({1, 4}, at::kLong);
  const auto run = [&](bool recompute) {
    weight.mutable_grad().reset();
    x.mutable_grad().reset();
    const Tensors inputs = {x, at::Tensor(), ids};
    const Tensors out = recompute ? checkpoint(function, inputs) : function(inputs);
    EXPECT_FALSE(out[2].requires_grad());
    EXPECT_FALSE(out[4].defined());
    (out[0].sum() + (out[3] * 3).sum()).backward();  // out[1] stays unused
    return Gradients{out[0].detach(), x.grad(), weight.grad(), {}};
  };
  expect_same(run(false), run(true));
}

TEST(Checkpoint, RunsBackwardTwiceOnARetainedGraphAndRefusesAFreedOne) {
  const Layers layers;
  const at::Tensor x = at::randn({4, 8}).set_requires_grad(true);
  const at::Tensor loss = run_layers(layers, x, Way::checkpoint).sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = x.grad().clone();
  loss.backward();
  EXPECT_TRUE(at::equal(x.grad(), once * 2));
  EXPECT_THROW(loss.backward(), std::exception);
}

TEST(Checkpoint, NoticesAnInputThatWasOverwritten) {
  const Layers layers;
  const at::Tensor x = at::randn({4, 8});
  const at::Tensor loss = run_layers(layers, x, Way::checkpoint).sum();
  x.add_(1);
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(Checkpoint, RefusesWhatItCannotCompute) {
  const Layers layers;
  const at::Tensor x = at::randn({4, 8}).set_requires_grad(true);
  const auto loss = [&] { return run_layers(layers, x, Way::checkpoint).sum(); };
  EXPECT_THROW(torch::autograd::grad({loss()}, {x}), ConfigError);
  EXPECT_THROW(loss().backward({}, /*retain_graph=*/true, /*create_graph=*/true), ConfigError);
}

TEST(Checkpoint, IsJustTheFunctionWithoutGradients) {
  const Layers layers;
  const torch::autograd::AutoGradMode off(false);
  int calls = 0;
  const at::Tensor y = checkpoint(
      [&calls](const at::Tensor& in) {
        ++calls;
        return in * 2;
      },
      at::ones({1}));
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(calls, 1);
}

TEST(Checkpoint, RecomputesUnderTheAutocastOfForward) {
  const Layers layers;
  const at::Tensor x = at::randn({4, 8}).set_requires_grad(true);
  const auto matmul = [&layers](const at::Tensor& in) { return at::matmul(in, layers.first); };
  const auto run = [&](bool recompute) {
    x.mutable_grad().reset();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const at::Tensor y = recompute ? checkpoint(matmul, x) : matmul(x);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.to(at::kFloat).square().sum().backward();
    return x.grad();
  };
  EXPECT_TRUE(at::equal(run(false), run(true)));
}

TEST(Checkpoint, TimesSpansWhenAsked) {
  const Layers layers;
  const auto times = std::make_shared<SpanTimes>();
  const at::Tensor x = at::randn({4, 8}).set_requires_grad(true);
  const auto plain = [&layers](const at::Tensor& in) { return layers.forward(in); };
  checkpoint(plain, x, {.profile = true}, times).sum().backward();
  checkpoint(plain, x, {.profile = false}, times).sum().backward();
  EXPECT_EQ(times->totals().forwards, 1);
  EXPECT_EQ(times->totals().backwards, 1);
  EXPECT_GT(times->totals().backward_time.count(), 0);
}

}  // namespace
}  // namespace capstan::recompute
