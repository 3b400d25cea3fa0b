// What backward() and step() make of the loss they are given, and of none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include "capstan/base/error.h"
#include "tests/engine/engine_fixture.h"

namespace capstan::test {
namespace {

using testing::HasSubstr;

engine::Options fp16_options(int stage) {
  engine::Options options = fp32_options(stage);
  options.precision.params = DType::fp16;
  options.precision.loss_scale = {.initial_scale_power = 16, .hysteresis = 1};
  options.gradient_clipping = 1e9;  // so that the norm is told
  return options;
}

at::Tensor loss_in(SmallModel& model, std::uint64_t seed, at::ScalarType dtype) {
  return loss_of(model, make_batch(4, kWidth, kClasses, seed), at::kHalf).to(dtype);
}

// 2^16 is more than fp16 holds: a loss in fp16 must scale its gradients all the same.
TEST(LossDtype, Fp16TakesTheDefaultScaleAsFp32Does) {
  for (const int stage : {0, 3}) {
    const auto run = [stage](at::ScalarType dtype) {
      return train(2, fp16_options(stage),
                   [dtype](Engine& engine, SmallModel& model, std::uint64_t seed) {
                     engine.backward(loss_in(model, seed, dtype));
                   });
    };
    const Trained in_fp16 = run(at::kHalf);
    const Trained in_fp32 = run(at::kFloat);
    for (std::size_t step = 0; step < in_fp16.reports.size(); ++step) {
      EXPECT_TRUE(in_fp16.reports[step].applied) << in_fp16.reports[step].non_finite;
      EXPECT_EQ(in_fp16.reports[step].loss_scale, 65536);
      EXPECT_NEAR(in_fp16.reports[step].grad_norm, in_fp32.reports[step].grad_norm,
                  2e-3 * in_fp32.reports[step].grad_norm);
    }
  }
}

TEST(LossDtype, APlainBackwardOfWhatScaleReturnsIsTheSame) {
  const auto run = [](bool plain) {
    return train(2, fp16_options(2),
                 [plain](Engine& engine, SmallModel& model, std::uint64_t seed) {
                   const at::Tensor loss = loss_in(model, seed, at::kHalf);
                   if (plain) {
                     engine.inside().backward().scale(loss).backward();
                   } else {
                     engine.backward(loss);
                   }
                 });
  };
  const Trained plain = run(true);
  EXPECT_TRUE(plain.reports.back().applied);
  EXPECT_TRUE(all_equal(plain.params, run(false).params));
}

TEST(Step, WithoutABackwardIsAnErrorThatChangesNothing) {
  for (const int stage : {0, 1, 2, 3}) {
    run_ranks(2, [stage](comm::Group& group) {
      engine::Options options = fp32_options(stage);
      options.optimizer->hyper.weight_decay = 0.1;
      SmallModel model(kWidth, kBlocks, kClasses);
      fill(*model, 3);
      Engine engine(model, options, {.group = &group});
      plain_micro(engine, model, 1);
      EXPECT_TRUE(engine.step().applied);
      const std::vector<at::Tensor> before = masters(engine);
      try {
        engine.step();
        ADD_FAILURE() << "no error";
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), HasSubstr("step() was called without a backward"));
      }
      EXPECT_TRUE(all_equal(before, masters(engine)));
      EXPECT_EQ(engine.progress().steps, 1);
      plain_micro(engine, model, 2);
      EXPECT_TRUE(engine.step().applied);
    });
  }
}

TEST(Step, TakesAGradientThatWasSetInsteadOfABackward) {
  run_ranks(2, [](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    engine::Options options = fp32_options(2);
    options.optimizer = optim::Options{.kind = optim::Kind::sgd, .hyper = {.lr = 1}};
    Engine engine(model, options, {.group = &group});
    engine.set_gradient("scale", torch::full({1}, 0.25));
    EXPECT_TRUE(engine.step().applied);
    EXPECT_EQ(engine.parameter("scale").item<float>(), 0.75F);
    // As a program does that writes gradients itself: the mean over ranks is applied.
    model->scale.mutable_grad() = torch::full({1}, 0.25 * (1 + group.rank()));
    EXPECT_TRUE(engine.step().applied);
    EXPECT_EQ(engine.parameter("scale").item<float>(), 0.375F);
  });
}

TEST(Step, RefusesAGradientThatComesAfterTheBackward) {
  run_ranks(2, [](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    Engine engine(model, fp32_options(1), {.group = &group});
    plain_micro(engine, model, 1);
    model->scale.mutable_grad() = torch::ones({1});
    try {
      engine.step();
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("a gradient was put into 'scale' after backward()"));
    }
    model->scale.mutable_grad().reset();
    EXPECT_TRUE(engine.step().applied);
  });
}

}  // namespace
}  // namespace capstan::test
