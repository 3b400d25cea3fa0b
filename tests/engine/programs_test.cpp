// Ordinary programs: each must train the same at every stage.
#include <algorithm>
#include <stdexcept>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "capstan/base/error.h"
#include "capstan/recompute/checkpoint.h"
#include "tests/engine/engine_fixture.h"

namespace capstan::test {
namespace {

at::Tensor loss_at(SmallModel& model, std::uint64_t seed) {
  return loss_of(model, make_batch(4, kWidth, kClasses, seed), at::kFloat);
}

void expect_same_at_all_stages(const Micro& micro, const Prepare& prepare = {},
                               engine::Options base = fp32_options(0)) {
  base.shard.reduce_schedule = shard::ReduceSchedule::per_backward;
  for (const int world : {1, 3}) {
    base.shard.stage = 0;
    const Trained reference = train(world, base, micro, prepare);
    for (const int stage : {1, 2, 3}) {
      base.shard.stage = stage;
      EXPECT_TRUE(all_equal(reference.params, train(world, base, micro, prepare).params))
          << "world " << world << ", stage " << stage;
    }
  }
}

TEST(Programs, OneRankEqualsAPlainLoopBitForBit) {
  SmallModel model(kWidth, kBlocks, kClasses);
  fill(*model, 11);
  optim::WorkerPool pool(1);
  std::vector<at::Tensor> m, v;
  for (const at::Tensor& param : model->parameters()) {
    m.push_back(at::zeros_like(param));
    v.push_back(at::zeros_like(param));
  }
  for (int step = 1; step <= 3; ++step) {
    model->zero_grad();
    loss_at(model, static_cast<std::uint64_t>(1000 + 10 * (step - 1))).backward();
    const std::vector<at::Tensor> params = model->parameters();
    for (std::size_t i = 0; i < params.size(); ++i) {
      optim::update(optim::Kind::adamw, {.lr = 1e-2}, {.lr = 1e-2, .step = step},
                    {.master = {params[i].data_ptr()},
                     .grad = {params[i].grad().data_ptr()},
                     .states = {{m[i].data_ptr()}, {v[i].data_ptr()}},
                     .elems = params[i].numel()},
                    {pool});
    }
  }
  const Trained trained = train(1, fp32_options(3), plain_micro);
  EXPECT_TRUE(all_equal(trained.params, model->parameters()));
}

TEST(Programs, FollowLibtorchsOwnAdamW) {
  SmallModel model(kWidth, kBlocks, kClasses);
  fill(*model, 11);
  torch::optim::AdamW adamw(model->parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(0));
  for (int step = 0; step < 3; ++step) {
    adamw.zero_grad();
    loss_at(model, static_cast<std::uint64_t>(1000 + 10 * step)).backward();
    adamw.step();
  }
  const Trained trained = train(1, fp32_options(2), plain_micro);
  for (std::size_t i = 0; i < trained.params.size(); ++i) {
    // Adam's step is at most lr, whatever the gradient: rounding moves it by a few ulps of it.
    EXPECT_TRUE(at::allclose(trained.params[i], model->parameters()[i], 1e-5, 1e-6)) << i;
  }
}

TEST(Programs, SeveralLossesAndBackwardsInOneStep) {
  expect_same_at_all_stages([](Engine& engine, SmallModel& model, std::uint64_t seed) {
    const at::Tensor first = loss_at(model, seed);
    const at::Tensor second = loss_at(model, seed + 5);
    engine.backward(first);
    engine.backward(second);
  });
}

TEST(Programs, ARetainedGraphIsUsedTwice) {
  expect_same_at_all_stages([](Engine& engine, SmallModel& model, std::uint64_t seed) {
    const at::Tensor loss = loss_at(model, seed);
    engine.backward(loss, {.retain_graph = true});
    engine.backward(loss);
  });
}

TEST(Programs, ARetainedGraphIsRefusedAfterAStep) {
  for (const int stage : {0, 2, 3}) {
    EXPECT_THROW(train(1, fp32_options(stage),
                       [](Engine& engine, SmallModel& model, std::uint64_t seed) {
                         const at::Tensor loss = loss_at(model, seed);
                         engine.backward(loss, {.retain_graph = true});
                         engine.step();
                         engine.backward(loss);
                       }),
                 std::exception)
        << "stage " << stage;
  }
}

TEST(Programs, NoSyncAccumulatesLikeOneReductionAtTheStep) {
  engine::Options options = fp32_options(0);
  options.batch.accumulation_steps = 1;
  for (const int stage : {0, 1, 2, 3}) {
    options.shard.stage = stage;
    const Micro with_scope = [](Engine& engine, SmallModel& model, std::uint64_t seed) {
      {
        const auto scope = engine.no_sync();
        engine.backward(loss_at(model, seed));
      }
      engine.backward(loss_at(model, seed + 5));
    };
    const Micro plain = [](Engine& engine, SmallModel& model, std::uint64_t seed) {
      engine.backward(loss_at(model, seed));
      engine.backward(loss_at(model, seed + 5));
    };
    options.shard.reduce_schedule = shard::ReduceSchedule::per_backward;
    const Trained scoped = train(2, options, with_scope);
    options.shard.reduce_schedule = shard::ReduceSchedule::at_step;
    EXPECT_TRUE(all_equal(scoped.params, train(2, options, plain).params)) << "stage " << stage;
  }
}

TEST(Programs, FrozenParametersStayAndTheRestTrains) {
  const Prepare freeze = [](SmallModel& model) {
    model->blocks[1]->up->weight.set_requires_grad(false);
    model->entry->weight.set_requires_grad(false);
    model->entry->bias.set_requires_grad(false);
  };
  expect_same_at_all_stages(plain_micro, freeze);
  SmallModel before(kWidth, kBlocks, kClasses);
  fill(*before, 11);
  const Trained after = train(2, fp32_options(3), plain_micro, freeze);
  const auto named = before->named_parameters();
  for (std::size_t i = 0; i < after.params.size(); ++i) {
    const bool frozen =
        named[i].key() == "block1.up.weight" || named[i].key().rfind("entry", 0) == 0;
    EXPECT_EQ(after.params[i].equal(named[i].value()), frozen) << named[i].key();
  }
}

TEST(Programs, NoTrainableParametersAtAll) {
  const Prepare freeze = [](SmallModel& model) {
    for (at::Tensor& param : model->parameters()) param.set_requires_grad(false);
  };
  for (const int stage : {0, 3}) {
    train(
        2, fp32_options(stage),
        [](Engine&, SmallModel& model, std::uint64_t seed) {
          EXPECT_FALSE(loss_at(model, seed).requires_grad());
        },
        freeze);
  }
}

TEST(Programs, UnusedParametersCountAsZero) {
  expect_same_at_all_stages([](Engine& engine, SmallModel& model, std::uint64_t seed) {
    const Batch batch = make_batch(4, kWidth, kClasses, seed);
    engine.backward(model->head(model->blocks[0](batch.inputs)).square().mean());
  });
}

TEST(Programs, UnusedParametersAreNamedWhereForbidden) {
  engine::Options options = fp32_options(2);
  options.shard.unused_parameters = shard::UnusedParameters::error;
  try {
    train(1, options, [](Engine& engine, SmallModel& model, std::uint64_t seed) {
      const Batch batch = make_batch(4, kWidth, kClasses, seed);
      engine.backward(model->head(model->entry(batch.inputs)).square().mean());
    });
    FAIL() << "unused parameters were accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.info().what.find("block1.up.weight"), std::string::npos) << error.what();
  }
}

TEST(Programs, AModuleCalledTwiceInOneForward) {
  expect_same_at_all_stages([](Engine& engine, SmallModel& model, std::uint64_t seed) {
    const Batch batch = make_batch(4, kWidth, kClasses, seed);
    at::Tensor x = model->entry(batch.inputs);
    x = model->blocks[0](x);
    x = model->blocks[1](x);
    x = model->blocks[0](x);
    engine.backward(model->head(x).square().mean());
  });
}

TEST(Programs, TheOrderOfUseChangesFromStepToStep) {
  expect_same_at_all_stages([](Engine& engine, SmallModel& model, std::uint64_t seed) {
    const Batch batch = make_batch(4, kWidth, kClasses, seed);
    const std::uint64_t step = (seed - 1000) / 10;  // equal on all ranks
    at::Tensor x = model->entry(batch.inputs);
    for (std::size_t i = 0; i < 3; ++i) x = model->blocks[(i + step) % 3](x);
    engine.backward(model->head(x).square().mean());
  });
}

TEST(Programs, EvaluationBetweenSteps) {
  expect_same_at_all_stages([](Engine& engine, SmallModel& model, std::uint64_t seed) {
    {
      const torch::NoGradGuard no_grad;
      loss_at(model, seed + 3);
    }
    loss_at(model, seed + 4);  // a graph that is thrown away
    plain_micro(engine, model, seed);
  });
}

TEST(Programs, RecomputedBlocksTrainTheSame) {
  const Micro recomputed = [](Engine& engine, SmallModel& model, std::uint64_t seed) {
    const Batch batch = make_batch(4, kWidth, kClasses, seed);
    at::Tensor x = model->entry(batch.inputs);
    for (auto& block : model->blocks) {
      x = recompute::checkpoint([&block](const at::Tensor& y) { return block(y); }, x);
    }
    const at::Tensor logits = model->head(x) * model->scale;
    engine.backward(torch::nn::functional::cross_entropy(logits, batch.targets));
  };
  expect_same_at_all_stages(recomputed);
  for (const int stage : {0, 3}) {
    EXPECT_TRUE(all_equal(train(2, fp32_options(stage), recomputed).params,
                          train(2, fp32_options(stage), plain_micro).params));
  }
}

TEST(Programs, RanksMayUseDifferentUnitsBelowStage3) {
  const Micro diverging = [](Engine& engine, SmallModel& model, std::uint64_t seed) {
    const Batch batch = make_batch(4, kWidth, kClasses, seed);
    at::Tensor x = model->entry(batch.inputs);
    x = model->blocks[static_cast<std::size_t>(engine.group().rank())](x);
    engine.backward(model->head(x).square().mean());
  };
  engine::Options options = fp32_options(0);
  options.shard.reduce_schedule = shard::ReduceSchedule::per_backward;
  const Trained reference = train(3, options, diverging);
  for (const int stage : {1, 2}) {
    options.shard.stage = stage;
    EXPECT_TRUE(all_equal(reference.params, train(3, options, diverging).params));
  }
  options.shard.stage = 3;
  try {
    train(3, options, diverging);
    FAIL() << "stage 3 did not notice";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("block"), std::string::npos) << error.what();
  }
}

TEST(Programs, TheCheckOfRanksNamesTheUnitsThatDiffer) {
  engine::Options options = fp32_options(1);
  options.shard.check_ranks = true;
  train(2, options, plain_micro, {}, 1);
  EXPECT_THROW(train(2, options,
                     [](Engine& engine, SmallModel& model, std::uint64_t seed) {
                       const Batch batch = make_batch(4, kWidth, kClasses, seed);
                       const auto rank = static_cast<std::size_t>(engine.group().rank());
                       engine.backward(model->blocks[rank](batch.inputs).sum());
                     }),
               CommError);
}

TEST(Programs, InputsAreCastWhereAsked) {
  engine::Options options = fp32_options(3);
  options.precision.params = DType::bf16;
  options.precision.cast_inputs = true;
  train(2, options, plain_micro);  // its inputs are fp32
}

TEST(Programs, NamedUnitsAreTheOnlyOnes) {
  engine::Options options = fp32_options(3);
  options.shard.unit_names = {"block1"};
  std::vector<std::string> units;  // of rank 0
  const Micro listing = [&](Engine& engine, SmallModel& model, std::uint64_t seed) {
    plain_micro(engine, model, seed);
    if (engine.group().rank() != 0) return;
    units.clear();
    for (const shard::UnitSpec& unit : engine.inside().sharded().plan().units)
      units.push_back(unit.name);
  };
  train(2, fp32_options(3), listing);
  const std::size_t found = units.size();
  const Trained named = train(2, options, listing);
  EXPECT_EQ(std::count(units.begin(), units.end(), "block1"), 1);
  EXPECT_EQ(std::count(units.begin(), units.end(), "block0"), 0);
  EXPECT_LT(units.size(), found);
  EXPECT_TRUE(all_equal(named.params, train(2, fp32_options(3), plain_micro).params));
}

TEST(Programs, MoreRanksThanElements) {
  engine::Options options = fp32_options(3);
  options.shard.persistence_threshold_elems = 0;
  const Trained sharded = train(4, options, plain_micro, {}, 2);
  options.shard.stage = 0;
  EXPECT_TRUE(all_equal(sharded.params, train(4, options, plain_micro, {}, 2).params));
}

TEST(Programs, ALossWithoutAGradientIsRefused) {
  EXPECT_THROW(
      train(1, fp32_options(1),
            [](Engine& engine, SmallModel&, std::uint64_t) { engine.backward(torch::ones({1})); }),
      ConfigError);
}

TEST(Programs, APlainBackwardWorksUnlessTheLossMustBeScaled) {
  const Micro foreign = [](Engine&, SmallModel& model, std::uint64_t seed) {
    loss_at(model, seed).backward();
  };
  for (const int stage : {0, 3}) {
    for (const int backwards : {1, 2}) {  // divided by a power of two: the same bits
      engine::Options options = fp32_options(stage);
      options.batch.accumulation_steps = backwards;
      EXPECT_TRUE(
          all_equal(train(2, options, foreign).params, train(2, options, plain_micro).params))
          << "stage " << stage << ", " << backwards << " backwards";
    }
  }
  engine::Options fp16 = fp32_options(1);
  fp16.precision.params = DType::fp16;
  EXPECT_THROW(train(1, fp16,
                     [](Engine&, SmallModel& model, std::uint64_t seed) {
                       loss_of(model, make_batch(4, kWidth, kClasses, seed), at::kHalf).backward();
                     }),
               ConfigError);
}

TEST(Programs, TwoModelsWithTwoEnginesOfDifferentStages) {
  run_ranks(2, [](comm::Group& group) {
    SmallModel a(kWidth, kBlocks, kClasses);
    SmallModel b(kWidth, 1, kClasses);
    fill(*a, 1);
    fill(*b, 2);
    Engine first(a, fp32_options(3), {.group = &group});
    engine::Options clipped = fp32_options(1);
    clipped.gradient_clipping = 1;
    Engine second(b, clipped, {.group = &group});
    for (std::uint64_t step = 0; step < 2; ++step) {
      const Batch batch = make_batch(4, kWidth, kClasses, step);
      const at::Tensor loss = torch::mse_loss(a->forward(batch.inputs), b->forward(batch.inputs));
      first.backward(loss);  // one graph through both models: both collect their gradients
      EXPECT_TRUE(first.step().applied);
      EXPECT_GT(second.step().grad_norm, 0);
    }
  });
}

}  // namespace
}  // namespace capstan::test
