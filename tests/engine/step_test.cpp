// The step: loss scale, skipped steps, clipping, groups, schedules, other optimizers, log lines.
#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>

#include "capstan/base/error.h"
#include "capstan/engine/ladder.h"
#include "capstan/engine/param_groups.h"
#include "tests/engine/engine_fixture.h"

namespace capstan::test {
namespace {

class Recorder final : public Logger {
 public:
  void log(LogLevel level, std::string_view text) override { lines.emplace_back(level, text); }
  std::vector<std::pair<LogLevel, std::string>> lines;
};

// A batch whose loss overflows fp16 gradients on one rank only.
void backward_with_inf(Engine& engine, SmallModel& model, std::uint64_t seed, at::ScalarType dtype,
                       bool bad) {
  at::Tensor loss = loss_of(model, make_batch(4, kWidth, kClasses, seed), dtype);
  if (bad) loss = loss * std::numeric_limits<float>::infinity();
  engine.backward(loss);
}

TEST(LossScale, OverflowOnOneRankSkipsTheStepOnAllAndNamesAParameter) {
  for (const int stage : {0, 1, 2, 3}) {
    run_ranks(3, [stage](comm::Group& group) {
      engine::Options options = fp32_options(stage);
      options.precision.params = DType::fp16;
      options.precision.loss_scale = {.initial_scale_power = 8, .hysteresis = 1};
      SmallModel model(kWidth, kBlocks, kClasses);
      fill(*model, 3);
      Recorder log;
      Engine engine(model, options, {.group = &group, .logger = &log});
      backward_with_inf(engine, model, 1, at::kHalf, false);
      EXPECT_TRUE(engine.step().applied);
      const std::vector<at::Tensor> before = masters(engine);
      backward_with_inf(engine, model, 2, at::kHalf, group.rank() == 1);
      const engine::StepReport skipped = engine.step();
      EXPECT_FALSE(skipped.applied);
      EXPECT_EQ(skipped.loss_scale, 256);
      EXPECT_EQ(engine.loss_scale(), 128);
      EXPECT_FALSE(skipped.non_finite.empty());
      EXPECT_TRUE(all_equal(before, masters(engine)));
      EXPECT_EQ(engine.progress().steps, 2);
      EXPECT_EQ(engine.progress().skipped, 1);
      if (group.rank() == 0) {
        EXPECT_EQ(log.lines.back().first, LogLevel::warning);
        EXPECT_NE(log.lines.back().second.find(skipped.non_finite), std::string::npos);
      }
      backward_with_inf(engine, model, 3, at::kHalf, false);
      EXPECT_TRUE(engine.step().applied);
    });
  }
}

TEST(LossScale, IsTakenOutAgainExactly) {
  // A power of two changes no bit of the gradients, unless they are too small for normal fp16
  // numbers: any scale that lifts them above gives the same updates. Plain gradient descent, which
  // a factor that was left in would take another way.
  engine::Options options = fp32_options(2);
  options.optimizer = optim::Options{.kind = optim::Kind::sgd, .hyper = {.lr = 0.1}};
  options.gradient_clipping = 1e9;  // so that the norm is reported
  const Trained exact = train(2, options, plain_micro);
  options.precision.params = DType::fp16;
  const Micro micro = [](Engine& engine, SmallModel& model, std::uint64_t seed) {
    engine.backward(loss_of(model, make_batch(4, kWidth, kClasses, seed), at::kHalf));
  };
  options.precision.loss_scale.static_scale = 1 << 10;
  const Trained a = train(2, options, micro);
  options.precision.loss_scale.static_scale = 1 << 12;
  const Trained b = train(2, options, micro);
  EXPECT_TRUE(all_equal(a.params, b.params));
  EXPECT_EQ(a.reports[0].grad_norm, b.reports[0].grad_norm);
  EXPECT_NEAR(a.reports[0].grad_norm, exact.reports[0].grad_norm,
              0.02 * exact.reports[0].grad_norm);
}

TEST(LossScale, Bf16AndFp32SkipToo) {
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    engine::Options options = fp32_options(3);
    options.precision.params = dtype;
    options.precision.max_skipped_in_a_row = 2;
    const at::ScalarType type = dtype == DType::bf16 ? at::kBFloat16 : at::kFloat;
    run_ranks(2, [&](comm::Group& group) {
      SmallModel model(kWidth, kBlocks, kClasses);
      Engine engine(model, options, {.group = &group});
      backward_with_inf(engine, model, 1, type, group.rank() == 0);
      EXPECT_FALSE(engine.step().applied);
      backward_with_inf(engine, model, 2, type, group.rank() == 1);
      EXPECT_THROW(engine.step(), Error);  // the second in a row ends the run
    });
  }
}

TEST(Clipping, LimitsTheNormOfWhatIsApplied) {
  engine::Options options = fp32_options(1);
  options.optimizer = optim::Options{.kind = optim::Kind::sgd, .hyper = {.lr = 1.0}};
  options.gradient_clipping = 0.01;
  run_ranks(2, [&](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    fill(*model, 3);
    Engine engine(model, options, {.group = &group});
    const std::vector<at::Tensor> before = masters(engine);
    plain_micro(engine, model, 5);
    const engine::StepReport report = engine.step();
    EXPECT_GT(report.grad_norm, 0.01);
    const std::vector<at::Tensor> after = masters(engine);
    double squares = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      squares += (after[i] - before[i]).to(at::kDouble).square().sum().item<double>();
    }
    EXPECT_NEAR(std::sqrt(squares), 0.01, 1e-5);
  });
}

TEST(Averaging, PredivideAndPrescaleOnlyMoveTheDivision) {
  engine::Options options = fp32_options(2);
  const Trained plain = train(4, options, plain_micro);
  options.comm.prescale_gradients = true;  // four ranks: a power of two, exact
  EXPECT_TRUE(all_equal(plain.params, train(4, options, plain_micro).params));
  options.comm = {.predivide_factor = 2.0};
  EXPECT_TRUE(all_equal(plain.params, train(4, options, plain_micro).params));
  // A sum over four ranks steps four times as far as their mean.
  options.optimizer = optim::Options{.kind = optim::Kind::sgd, .hyper = {.lr = 0.4}};
  options.comm = {};
  const Trained mean = train(4, options, plain_micro, {}, 1);
  options.optimizer->hyper.lr = 0.1;
  options.comm = {.reduce_op = comm::ReduceOp::sum};
  const Trained sum = train(4, options, plain_micro, {}, 1);
  for (std::size_t i = 0; i < sum.params.size(); ++i) {
    EXPECT_TRUE(at::allclose(sum.params[i], mean.params[i], 1e-5, 1e-6)) << i;
  }
  EXPECT_FALSE(all_equal(sum.params, plain.params));
}

// The batches of seeds `first`, `first` + 10, ..., as train() hands them to its micro-batches.
Batch joined_batch(std::uint64_t first, int count) {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
  for (int i = 0; i < count; ++i) {
    const Batch batch = make_batch(4, kWidth, kClasses, first + 10 * static_cast<std::uint64_t>(i));
    inputs.push_back(batch.inputs);
    targets.push_back(batch.targets);
  }
  return {at::cat(inputs), at::cat(targets)};
}

bool all_close(const Trained& a, const Trained& b) {
  bool close = true;
  for (std::size_t i = 0; i < a.params.size(); ++i) {
    close = close && at::allclose(a.params[i], b.params[i], 1e-5, 1e-6);
  }
  return close;
}

TEST(Averaging, AccumulationEqualsOneLargeBatch) {
  const auto of_joined = [](int count) {
    return [count](Engine& engine, SmallModel& model, std::uint64_t seed) {
      engine.backward(loss_of(model, joined_batch(seed, count), at::kFloat));
    };
  };
  for (const int world : {1, 2}) {
    for (const int stage : {0, 1, 2, 3}) {
      engine::Options options = fp32_options(stage);
      options.optimizer = optim::Options{.kind = optim::Kind::sgd, .hyper = {.lr = 0.5}};
      const Trained large = train(world, options, of_joined(3), {}, 1);
      EXPECT_FALSE(all_close(large, train(world, options, of_joined(2), {}, 1)));
      options.batch.accumulation_steps = 3;
      EXPECT_TRUE(all_close(large, train(world, options, plain_micro, {}, 1)))
          << "stage " << stage << ", world " << world;
    }
  }
}

TEST(Groups, PatternsChooseHyperParameters) {
  EXPECT_TRUE(engine::matches("*.bias", "block0.up.bias"));
  EXPECT_TRUE(engine::matches("*norm*", "block0.norm.weight"));
  EXPECT_TRUE(engine::matches("head.weight", "head.weight"));
  EXPECT_FALSE(engine::matches("*.bias", "block0.up.weight"));
  EXPECT_FALSE(engine::matches("", "x"));
  EXPECT_TRUE(engine::matches("**a*", "bab"));
  engine::Options options = fp32_options(3);
  options.optimizer->groups = {
      {.patterns = {"*.bias", "*norm*"}, .hyper = {.lr = 0}},
      {.patterns = {"*"}, .hyper = {.lr = 2e-2}}};  // the first that matches
  SmallModel before(kWidth, kBlocks, kClasses);
  fill(*before, 11);
  const Trained after = train(2, options, plain_micro);
  const auto named = before->named_parameters();
  for (std::size_t i = 0; i < after.params.size(); ++i) {
    const bool fixed =
        engine::matches("*.bias", named[i].key()) || engine::matches("*norm*", named[i].key());
    EXPECT_EQ(after.params[i].equal(named[i].value()), fixed) << named[i].key();
  }
  EXPECT_EQ(after.reports[0].lr, (std::vector<double>{1e-2, 0, 2e-2}));
}

TEST(Schedules, CountAppliedStepsOnly) {
  engine::Options options = fp32_options(1);
  options.schedule =
      schedule::WarmupLr{.max_lr = {0.1}, .num_steps = 4, .type = schedule::WarmupType::linear};
  run_ranks(1, [&](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    Engine engine(model, options, {.group = &group});
    std::vector<double> rates;
    for (std::uint64_t step = 0; step < 5; ++step) {
      backward_with_inf(engine, model, step, at::kFloat, step == 2);
      rates.push_back(engine.step().lr.front());
    }
    ASSERT_EQ(rates.size(), 5U);
    EXPECT_EQ(rates[2], rates[3]);  // the skipped step did not move the schedule
    EXPECT_GT(rates[4], rates[3]);
  });
}

TEST(TorchOptimizers, WorkOnTheShardsAtEveryStage) {
  const auto run = [](int stage) {
    std::vector<at::Tensor> params;
    run_ranks(3, [&](comm::Group& group) {
      engine::Options options = fp32_options(stage);
      options.optimizer.reset();
      SmallModel model(kWidth, kBlocks, kClasses);
      fill(*model, 11);
      Engine engine(model, options,
                    {.group = &group, .optimizer = [](std::vector<at::Tensor> pieces) {
                       return std::make_unique<torch::optim::AdamW>(
                           std::move(pieces), torch::optim::AdamWOptions(1e-2).weight_decay(0));
                     }});
      for (int step = 0; step < 3; ++step) {
        plain_micro(engine, model, static_cast<std::uint64_t>(1000 + 10 * step + group.rank()));
        engine.step();
      }
      const std::vector<at::Tensor> mine = masters(engine);
      if (group.rank() == 0) params = mine;
    });
    return params;
  };
  const std::vector<at::Tensor> reference = run(0);
  for (const int stage : {1, 2, 3}) EXPECT_TRUE(all_equal(reference, run(stage))) << stage;
  const Trained ours = train(3, fp32_options(0), plain_micro);
  for (std::size_t i = 0; i < reference.size(); ++i) {
    EXPECT_TRUE(at::allclose(reference[i], ours.params[i], 1e-5, 1e-6)) << i;
  }
}

TEST(TorchOptimizers, OneThatNeedsWholeTensorsIsRefused) {
  run_ranks(1, [](comm::Group& group) {
    engine::Options options = fp32_options(1);
    SmallModel model(kWidth, 1, kClasses);
    const auto lbfgs = [](std::vector<at::Tensor> pieces) {
      return std::make_unique<torch::optim::LBFGS>(std::move(pieces), torch::optim::LBFGSOptions());
    };
    EXPECT_THROW(Engine(model, options, {.group = &group, .optimizer = lbfgs}), ConfigError);
  });
}

TEST(LogLines, ThroughputLineIsTheOneUsersKnow) {
  run_ranks(1, [](comm::Group& group) {
    engine::Options options = fp32_options(1);
    options.log_level = LogLevel::info;
    options.profile.steps_per_print = 2;
    options.profile.wall_clock_breakdown = true;
    options.profile.memory_breakdown = true;
    options.profile.comms = {.enabled = true, .all_ops = false, .ops = {"all_gather"}};
    SmallModel model(kWidth, 1, kClasses);
    Recorder log;
    Engine engine(model, options, {.group = &group, .logger = &log});
    for (std::uint64_t step = 0; step < 4; ++step) {
      plain_micro(engine, model, step);
      engine.step();
    }
    std::string all;
    for (const auto& [level, text] : log.lines) all += text + "\n";
    const std::regex line(
        "epoch=0/micro_step=4/global_step=4, RunningAvgSamplesPerSec=[0-9.e+-]+, "
        "CurrSamplesPerSec=[0-9.e+-]+, MemAllocated=[0-9.]+GB, MaxMemAllocated=[0-9.]+GB");
    EXPECT_TRUE(std::regex_search(all, line)) << all;
    EXPECT_NE(all.find("time (ms) | fwd: "), std::string::npos) << all;
    EXPECT_NE(all.find("memory after backward: parameters"), std::string::npos) << all;
    EXPECT_NE(all.find("data-parallel"), std::string::npos) << all;
    EXPECT_NE(all.find("  all_gather"), std::string::npos) << all;
    EXPECT_EQ(all.find("  broadcast"), std::string::npos) << all;
  });
}

TEST(LogLines, TellEveryOperationAndItsUnitWhereAsked) {
  run_ranks(2, [](comm::Group& group) {
    engine::Options options = fp32_options(3);
    options.log_level = LogLevel::info;
    options.profile.state_dump = "every option";
    options.profile.comms = {
        .enabled = true, .all_ops = false, .ops = {"reduce_scatter"}, .verbose = true};
    for (const bool debug : {false, true}) {
      options.profile.comms.debug = debug;
      SmallModel model(kWidth, 1, kClasses);
      Recorder log;
      {
        Engine engine(model, options, {.group = &group, .logger = &log});
        plain_micro(engine, model, 1);
        engine.step();
      }
      const std::size_t lines = log.lines.size();
      group.barrier().wait();  // nobody listens any more
      EXPECT_EQ(log.lines.size(), lines);
      std::string all;
      for (const auto& [level, text] : log.lines) all += text + "\n";
      if (group.rank() != 0) {
        EXPECT_EQ(all, "");
        continue;
      }
      const std::regex line("reduce_scatter of [0-9]+ fp32" +
                            std::string(debug ? " \\(.+\\)" : "") +
                            ": [0-9.]+ [KMG]?i?B in [0-9.]+ ms, [0-9.]+ GB/s");
      EXPECT_TRUE(std::regex_search(all, line)) << all;
      EXPECT_EQ(all.find("all_gather of"), std::string::npos) << all;
      EXPECT_NE(all.find("every option"), std::string::npos) << all;
    }
  });
}

TEST(OutOfMemory, EndsWithTheLedgerAndTheNextRungOfTheLadder) {
  engine::Options options = fp32_options(1);
  options.batch.micro_samples = 8;
  run_ranks(1, [&](comm::Group& group) {
    SmallModel model(kWidth, 1, kClasses);
    Engine engine(model, options, {.group = &group});
    // A hook in the middle of backward asks for more than there is.
    const at::Tensor input = torch::randn({1, kWidth});
    at::Tensor logits = model->forward(input);
    logits.register_hook([](const at::Tensor&) { torch::empty({std::int64_t{1} << 58}); });
    try {
      engine.backward(logits.sum());
      FAIL() << "2^60 bytes were given";
    } catch (const OutOfMemory& error) {
      EXPECT_NE(error.info().where.find("optimizer"), std::string::npos) << error.what();
      EXPECT_EQ(error.info().fix, engine::next_saving(options, {.on_gpu = false}));
    }
    // One that is alone can try again with less.
    engine.clear_gradients();
    engine.backward(model->forward(input).sum());
    EXPECT_TRUE(engine.step().applied);
  });
}

}  // namespace
}  // namespace capstan::test
