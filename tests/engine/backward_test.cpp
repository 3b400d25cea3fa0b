// backward(outputs, gradients): whoever differentiates something else than a loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include "capstan/base/error.h"
#include "tests/engine/engine_fixture.h"

namespace capstan::test {
namespace {

using testing::HasSubstr;
using torch::nn::functional::cross_entropy;

engine::Options scaled_options(int stage, DType dtype) {
  engine::Options options = fp32_options(stage);
  options.gradient_clipping = 0.5;
  options.batch.accumulation_steps = 2;
  options.precision.params = dtype;
  options.precision.loss_scale = {.initial_scale_power = 16, .hysteresis = 1};
  return options;
}

// The gradient of the loss with respect to the logits, as a program may compute it by hand.
at::Tensor gradient_of(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor leaf = logits.detach().requires_grad_();
  cross_entropy(leaf, targets).backward();
  return leaf.grad();
}

TEST(BackwardOfOutputs, HasTheBitsOfTheLossAtEveryStage) {
  for (const DType dtype : {DType::fp32, DType::fp16}) {
    for (const int stage : {0, 1, 2, 3}) {
      const auto run = [&](bool by_outputs) {
        return train(2, scaled_options(stage, dtype),
                     [&](Engine& engine, SmallModel& model, std::uint64_t seed) {
                       const Batch batch = make_batch(4, kWidth, kClasses, seed);
                       const auto type = dtype == DType::fp16 ? at::kHalf : at::kFloat;
                       const at::Tensor logits =
                           model->forward(batch.inputs.to(type)).to(at::kFloat);
                       if (by_outputs) {
                         engine.backward({logits}, {gradient_of(logits, batch.targets)});
                       } else {
                         engine.backward(cross_entropy(logits, batch.targets));
                       }
                     });
      };
      const Trained by_outputs = run(true);
      const Trained by_loss = run(false);
      EXPECT_TRUE(by_outputs.reports.back().applied);
      EXPECT_EQ(by_outputs.reports.back().loss_scale, dtype == DType::fp16 ? 65536 : 1);
      EXPECT_EQ(by_outputs.reports.back().grad_norm, by_loss.reports.back().grad_norm);
      EXPECT_TRUE(all_equal(by_outputs.params, by_loss.params)) << stage;
    }
  }
}

// 2^16 is more than fp16 holds, so the gradients of the parameters get the rest.
TEST(BackwardOfOutputs, InFp16TakesAScaleThatFp16CannotHold) {
  engine::Options options = scaled_options(2, DType::fp16);
  options.batch.accumulation_steps = 1;
  const auto run = [&](at::ScalarType dtype) {
    return train(2, options, [&](Engine& engine, SmallModel& model, std::uint64_t seed) {
      const Batch batch = make_batch(4, kWidth, kClasses, seed);
      const at::Tensor logits = model->forward(batch.inputs.to(at::kHalf));
      const at::Tensor loss = cross_entropy(logits.to(at::kFloat), batch.targets).to(dtype);
      engine.backward({loss, logits}, {at::Tensor(), torch::full_like(logits, 1.0 / 1024)});
    });
  };
  const Trained in_fp16 = run(at::kHalf);
  EXPECT_TRUE(in_fp16.reports.back().applied) << in_fp16.reports.back().non_finite;
  EXPECT_NEAR(in_fp16.reports.back().grad_norm, run(at::kFloat).reports.back().grad_norm,
              2e-3 * in_fp16.reports.back().grad_norm);
}

TEST(BackwardOfOutputs, AddsUpSeveralAndTakesOneForAGradientThatIsLeftOut) {
  const auto run = [](bool by_outputs) {
    return train(2, fp32_options(3), [&](Engine& engine, SmallModel& model, std::uint64_t seed) {
      const Batch batch = make_batch(4, kWidth, kClasses, seed);
      const at::Tensor logits = model->forward(batch.inputs);
      const at::Tensor loss = cross_entropy(logits, batch.targets);
      const at::Tensor weights = torch::full_like(logits, 0.125);
      if (by_outputs) {
        engine.backward({loss, logits}, {at::Tensor(), weights});
      } else {
        engine.backward(loss + (logits * weights).sum());
      }
    });
  };
  EXPECT_TRUE(all_equal(run(true).params, run(false).params));
}

struct TwoPartsImpl : torch::nn::Module {
  SmallModel first = register_module("first", SmallModel(kWidth, 1, kWidth));
  SmallModel second = register_module("second", SmallModel(kWidth, 2, kClasses));
};
TORCH_MODULE(TwoParts);

// One engine over both parts, or one for each, as the stages of a pipeline have: the loss is scaled
// and divided once, in the last one.
std::vector<at::Tensor> train_parts(comm::Group& group, const engine::Options& options, bool cut) {
  TwoParts model;
  fill(*model, 5);
  std::vector<std::unique_ptr<Engine>> engines;
  const auto add = [&](std::shared_ptr<torch::nn::Module> part) {
    engines.push_back(
        std::make_unique<Engine>(std::move(part), options, engine::Parts{.group = &group}));
  };
  if (cut) {
    add(model->first.ptr());
    add(model->second.ptr());
  } else {
    add(model.ptr());
  }
  const auto type = options.precision.params == DType::fp16 ? at::kHalf : at::kFloat;
  for (int micro = 0; micro < 4; ++micro) {
    const std::uint64_t seed = static_cast<std::uint64_t>(10 * micro + group.rank());
    const Batch batch = make_batch(4, kWidth, kClasses, seed);
    const at::Tensor sent = model->first->forward(batch.inputs.to(type));
    const at::Tensor received = cut ? sent.detach().requires_grad_() : sent;
    const at::Tensor logits = model->second->forward(received);
    engines.back()->backward(cross_entropy(logits.to(at::kFloat), batch.targets));
    if (cut) engines[0]->backward({sent}, {received.grad()}, {.already_scaled = true});
    for (auto& each : engines) each->step();
  }
  std::vector<at::Tensor> values;
  for (auto& each : engines) {
    for (at::Tensor& value : masters(*each)) values.push_back(value);
  }
  return values;
}

TEST(BackwardOfOutputs, TakesGradientsFromTheNextStageOfAPipelineAsTheyAre) {
  for (const DType dtype : {DType::fp32, DType::fp16}) {
    for (const int stage : {0, 1, 2, 3}) {
      engine::Options options = scaled_options(stage, dtype);
      options.gradient_clipping = 0;  // each engine would clip its own part
      run_ranks(2, [&](comm::Group& group) {
        EXPECT_TRUE(all_equal(train_parts(group, options, /*cut=*/true),
                              train_parts(group, options, /*cut=*/false)))
            << stage;
      });
    }
  }
}

TEST(BackwardOfOutputs, SaysWhatIsWrongWithThemAndTrainingGoesOn) {
  run_ranks(1, [](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    Engine engine(model, fp32_options(0), {.group = &group});
    const at::Tensor out = model->forward(torch::ones({2, kWidth}));
    const at::Tensor good = torch::ones_like(out);
    const auto refused = [&](const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& gradients, const char* what) {
      try {
        engine.backward(outputs, gradients);
        ADD_FAILURE() << "no error: " << what;
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.info().what, HasSubstr(what));
        EXPECT_THAT(error.info().where, HasSubstr("backward(outputs, gradients)"));
        EXPECT_FALSE(error.info().fix.empty());
      }
    };
    refused({}, {}, "0 outputs and 0 gradients");
    refused({out, out}, {good}, "2 outputs and 1 gradient were given");
    refused({out}, {torch::ones({2, 3})},
            "output 0 has shape [2, 7] but its gradient has shape [2, 3]");
    refused({out}, {at::Tensor()}, "output 0 has 14 elements but no gradient");
    refused({out, out.detach()}, {good, good}, "output 1 does not require a gradient");
    refused({out.argmax(1)}, {torch::ones({2})}, "output 0 has dtype Long, which has no gradient");
    refused({at::Tensor()}, {good}, "output 0 is undefined");
    refused({out}, {good.to(at::kLong)},
            "output 0 is Float on cpu but its gradient is Long on cpu");
    engine.backward({out}, {good});
    EXPECT_TRUE(engine.step().applied);
  });
}

}  // namespace
}  // namespace capstan::test
