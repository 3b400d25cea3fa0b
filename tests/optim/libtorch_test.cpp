// Our optimizers and conversions beside libtorch's own.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "capstan/optim/column_ops.h"
#include "capstan/optim/update.h"
#include "tests/optim/columns.h"

namespace capstan::optim {
namespace {

constexpr std::int64_t kElems = 333;
constexpr int kSteps = 100;
constexpr double kLr = 1e-2;

using Params = std::vector<at::Tensor>;
using MakeTorch = std::function<std::unique_ptr<torch::optim::Optimizer>(Params)>;

struct Pair {
  std::string label;
  Kind kind;
  HyperParams hyper;
  MakeTorch make_torch;
};

template <typename Optimizer, typename Options>
MakeTorch torch_with(Options options) {
  return [options](Params params) { return std::make_unique<Optimizer>(params, options); };
}

std::vector<Pair> pairs() {
  namespace to = torch::optim;
  return {
      {"adam", Kind::adam, {}, torch_with<to::Adam>(to::AdamOptions(kLr))},
      {"adam_l2",
       Kind::adam,
       {.beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1},
       torch_with<to::Adam>(to::AdamOptions(kLr).betas({0.8, 0.99}).eps(1e-6).weight_decay(0.1))},
      {"adamw",
       Kind::adamw,
       {.weight_decay = 0.1},
       torch_with<to::AdamW>(to::AdamWOptions(kLr).weight_decay(0.1))},
      {"sgd", Kind::sgd, {}, torch_with<to::SGD>(to::SGDOptions(kLr))},
      {"sgd_momentum",
       Kind::sgd,
       {.weight_decay = 0.1, .momentum = 0.9, .dampening = 0.2},
       torch_with<to::SGD>(to::SGDOptions(kLr).weight_decay(0.1).momentum(0.9).dampening(0.2))},
      {"sgd_nesterov",
       Kind::sgd,
       {.momentum = 0.9, .nesterov = true},
       torch_with<to::SGD>(to::SGDOptions(kLr).momentum(0.9).nesterov(true))},
      {"adagrad",
       Kind::adagrad,
       {.eps = 1e-10, .weight_decay = 0.1, .lr_decay = 0.01, .initial_accumulator = 0.5},
       torch_with<to::Adagrad>(
           to::AdagradOptions(kLr).weight_decay(0.1).lr_decay(0.01).initial_accumulator_value(
               0.5))}};
}

// 100 steps of libtorch's optimizer in `dtype` on the gradients that the test generates.
std::vector<float> torch_result(const Pair& pair, at::ScalarType dtype) {
  at::Tensor param = at::tensor(normal_values(kElems, 1)).to(dtype);
  param.requires_grad_(true);
  const auto optimizer = pair.make_torch({param});
  for (int step = 1; step <= kSteps; ++step) {
    param.mutable_grad() = at::tensor(normal_values(kElems, 100u + step)).to(dtype);
    optimizer->step();
  }
  const at::Tensor out = param.detach().to(at::kFloat).contiguous();
  return {out.const_data_ptr<float>(), out.const_data_ptr<float>() + kElems};
}

std::vector<float> our_result(const Pair& pair) {
  TestColumn master(DType::fp32, normal_values(kElems, 1), 0);
  const float start = static_cast<float>(initial_state(pair.kind, pair.hyper));
  const std::vector<float> state(kElems, start);
  TestColumn first(DType::fp32, state, 0), second(DType::fp32, state, 0);
  WorkerPool pool(1);
  for (int step = 1; step <= kSteps; ++step) {
    TestColumn grad(DType::fp32, normal_values(kElems, 100u + step), 0);
    update(pair.kind, pair.hyper, {.lr = kLr, .step = step},
           {.master = master.column(),
            .grad = grad.view(),
            .states = {first.column(), second.column()},
            .elems = kElems},
           {.pool = pool});
  }
  return master.values();
}

// Each step may round the parameter (2^-24 of it) and the update (some ten roundings of at most
// |p| in all): 100 steps stay below 100 * 11 * 2^-24 in fp32, on either side. Against fp64 only our
// side rounds.
constexpr double kTolerance = 100 * 11 * 0x1p-24;

class Libtorch : public testing::TestWithParam<std::size_t> {};

TEST_P(Libtorch, AgreesWithinRoundingOverAHundredSteps) {
  const Pair pair = pairs()[GetParam()];
  const std::vector<float> ours = our_result(pair);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const std::vector<float> theirs = torch_result(pair, dtype);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      ASSERT_NEAR(ours[i], theirs[i], kTolerance * std::max(1.0f, std::fabs(theirs[i])))
          << "element " << i << " in " << at::toString(dtype);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Libtorch, testing::Range<std::size_t>(0, pairs().size()),
                         [](const auto& param) { return pairs()[param.param].label; });

TEST(LibtorchColumns, ConversionsHaveTheBitsOfTensorConversions) {
  std::vector<float> values = awkward_values(20'011, 3);
  for (int exponent = -30; exponent <= 20; ++exponent) {
    for (const float x : normal_values(2000, 50u + exponent))
      values.push_back(std::ldexp(x, exponent));
  }
  const auto elems = static_cast<std::int64_t>(values.size());
  const at::Tensor source = at::tensor(values);
  WorkerPool pool(1);
  for (const Simd simd : {Simd::scalar, best_simd()}) {
    const CpuRun run = {.pool = pool, .simd = simd};
    for (const auto& [ours, theirs] :
         {std::pair{DType::bf16, at::kBFloat16}, std::pair{DType::fp16, at::kHalf}}) {
      std::vector<std::uint16_t> narrow(values.size());
      convert({narrow.data(), ours}, {values.data(), DType::fp32}, elems, run);
      const at::Tensor expected = source.to(theirs);
      const auto* bits = static_cast<const std::uint16_t*>(expected.const_data_ptr());
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (std::isnan(values[i])) continue;  // libtorch's own NaN depends on its vector width
        ASSERT_EQ(narrow[i], bits[i]) << values[i] << " to " << name(ours);
      }
    }
  }
}

TEST(LibtorchColumns, AccumulationHasTheBitsOfATensorAddition) {
  at::Tensor sum = at::tensor(normal_values(1001, 1));
  const at::Tensor more = at::tensor(normal_values(1001, 2)).to(at::kBFloat16);
  std::vector<float> ours = normal_values(1001, 1);
  WorkerPool pool(1);
  accumulate({ours.data(), DType::fp32}, {more.const_data_ptr(), DType::bf16}, 1001,
             {.pool = pool});
  sum += more.to(at::kFloat);
  EXPECT_TRUE(sum.equal(at::tensor(ours)));
}

}  // namespace
}  // namespace capstan::optim
