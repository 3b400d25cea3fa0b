// Whole tensors by name, and what happens to those who touch a sharded parameter.
#include <chrono>
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "tests/engine/engine_fixture.h"

namespace capstan::test {
namespace {

TEST(Access, ParametersGradientsAndStatesAreWholeOnEveryRankAtEveryStage) {
  for (const int stage : {0, 1, 2, 3}) {
    run_ranks(3, [stage](comm::Group& group) {
      SmallModel model(kWidth, kBlocks, kClasses);
      SmallModel plain(kWidth, kBlocks, kClasses);
      fill(*model, 5);
      fill(*plain, 5);
      Engine engine(model, fp32_options(stage), {.group = &group});
      const Batch batch = make_batch(4, kWidth, kClasses, 9);  // equal on all ranks
      engine.backward(loss_of(model, batch, at::kFloat));
      loss_of(plain, batch, at::kFloat).backward();
      for (const auto& item : plain->named_parameters()) {
        EXPECT_TRUE(engine.parameter(item.key()).equal(item.value())) << item.key();
        EXPECT_TRUE(engine.master(item.key()).equal(item.value())) << item.key();
        // Three equal gradients, summed and divided by three again.
        EXPECT_TRUE(at::allclose(engine.gradient(item.key()), item.value().grad(), 1e-5, 1e-7))
            << item.key();
        EXPECT_EQ(engine.state(item.key(), "exp_avg").sizes(), item.value().sizes());
      }
      engine.step();
      EXPECT_GT(engine.state("block0.up.weight", "exp_avg").abs().max().item<float>(), 0);
    });
  }
}

TEST(Access, WhatIsWrittenIsReadAndUsed) {
  for (const int stage : {0, 1, 3}) {
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      run_ranks(2, [stage, dtype](comm::Group& group) {
        SmallModel model(kWidth, kBlocks, kClasses);
        engine::Options options = fp32_options(stage);
        options.precision.params = dtype;
        options.optimizer->kind = optim::Kind::sgd;
        options.optimizer->hyper = {.lr = 1.0, .momentum = 0.9};
        Engine engine(model, options, {.group = &group});
        const at::Tensor value = torch::full({2 * kWidth + 1, kWidth}, 0.5);
        engine.set_parameter("block1.up.weight", value);
        EXPECT_TRUE(engine.parameter("block1.up.weight").to(at::kFloat).equal(value));
        EXPECT_TRUE(engine.master("block1.up.weight").equal(value));
        const at::ScalarType torch_type = dtype == DType::fp32 ? at::kFloat : at::kBFloat16;
        engine.backward(loss_of(model, make_batch(4, kWidth, kClasses, 1), torch_type));
        engine.set_gradient("block1.up.weight", torch::full_like(value, 0.25));
        engine.set_state("block1.up.weight", "momentum_buffer", torch::zeros_like(value));
        engine.step();
        EXPECT_TRUE(engine.master("block1.up.weight").equal(torch::full_like(value, 0.25)));
        EXPECT_TRUE(engine.parameter("block1.up.weight").to(at::kFloat).equal(value * 0.5));
      });
    }
  }
}

// At stage 0 every rank updates everything, although the sums lie in shards.
TEST(Access, ARanksPartOfAGradientIsThatOfTheElementsItUpdates) {
  for (const int stage : {0, 1, 3}) {
    run_ranks(3, [stage](comm::Group& group) {
      SmallModel model(kWidth, kBlocks, kClasses);
      fill(*model, 5);
      Engine engine(model, fp32_options(stage), {.group = &group});
      engine.backward(loss_of(model, make_batch(4, kWidth, kClasses, 9), at::kFloat));
      shard::ShardedModel& sharded = engine.inside().sharded();
      constexpr shard::ColumnName kGradient{shard::Column::gradient};
      const int param = engine.inside().access().find("block1.up.weight");
      const layout::ElemRange mine = shard::owned_range(sharded, param);
      const at::Tensor sum = shard::read_whole(sharded, param, kGradient).view({-1});
      EXPECT_TRUE(shard::local_part(sharded, param, kGradient)
                      .equal(sum.narrow(0, mine.begin, mine.size())));
      EXPECT_TRUE(stage != 0 || mine.size() == sum.numel());
      shard::write_local(sharded, param, kGradient, at::full({mine.size()}, 0.5F));
      EXPECT_TRUE(shard::read_whole(sharded, param, kGradient)
                      .equal(at::full({2 * kWidth + 1, kWidth}, 0.5F)));
    });
  }
}

TEST(Access, NormsOfSetsOfGradientsCountEveryElementOnce) {
  for (const int stage : {0, 1, 3}) {
    run_ranks(3, [stage](comm::Group& group) {
      SmallModel model(kWidth, kBlocks, kClasses);
      fill(*model, 5);
      Engine engine(model, fp32_options(stage), {.group = &group});
      engine.backward(loss_of(model, make_batch(4, kWidth, kClasses, 9), at::kFloat));
      engine::Access& access = engine.inside().access();
      const double up = engine.gradient("block1.up.weight").norm().item<double>();
      const double head = engine.gradient("head.weight").norm().item<double>();
      const int first = access.find("block1.up.weight");
      const int second = access.find("head.weight");
      const std::vector<double> norms = access.gradient_norms({{first}, {first, second}, {}});
      ASSERT_EQ(norms.size(), 3U);
      EXPECT_NEAR(norms[0], up, 1e-5 * up);
      EXPECT_NEAR(norms[1], std::hypot(up, head), 1e-5 * std::hypot(up, head));
      EXPECT_EQ(norms[2], 0);
    });
  }
}

TEST(Access, NamesAreCheckedAndSuggested) {
  run_ranks(1, [](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    Engine engine(model, fp32_options(1), {.group = &group});
    try {
      engine.parameter("block1.up.wieght");
      FAIL();
    } catch (const ConfigError& error) {
      EXPECT_NE(error.info().fix.find("block1.up.weight"), std::string::npos) << error.what();
    }
    EXPECT_THROW(engine.state("head.weight", "banana"), ConfigError);
    EXPECT_THROW(engine.set_parameter("head.weight", torch::zeros({1})), ConfigError);
  });
}

TEST(Sharded, AParameterHasShapeZeroAndSaysItsNameWhenTouched) {
  run_ranks(2, [](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    Engine engine(model, fp32_options(3), {.group = &group});
    at::Tensor weight = model->blocks[2]->down->weight;
    EXPECT_EQ(weight.sizes(), at::IntArrayRef({0}));
    try {
      weight.sum();
      FAIL() << "the placeholder was read";
    } catch (const std::exception& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("block2.down.weight"), std::string::npos) << text;
      EXPECT_NE(text.find("nn::Unit"), std::string::npos) << text;
      EXPECT_NE(text.find("whole_parameters"), std::string::npos) << text;
    }
    {
      const auto whole = engine.whole_parameters();
      EXPECT_EQ(weight.sizes(), at::IntArrayRef({kWidth, 2 * kWidth + 1}));
      EXPECT_NO_THROW(weight.sum());
    }
    EXPECT_EQ(weight.sizes(), at::IntArrayRef({0}));
  });
}

TEST(Sharded, RanksWithDifferentModelsAreRefused) {
  try {
    run_ranks(2, [](comm::Group& group) {
      SmallModel model(kWidth, kBlocks + group.rank(), kClasses);
      Engine engine(model, fp32_options(2), {.group = &group});
    });
    FAIL() << "different models were accepted";
  } catch (const CommError& error) {
    EXPECT_NE(error.info().what.find("different models"), std::string::npos) << error.what();
  }
}

// Weights that are loaded later hold one element; where only some ranks made them so, the values
// of rank 0 count as ever.
TEST(Access, ParametersOfOneElementInMemoryAreSentAsOne) {
  for (const bool on_all : {true, false}) {
    run_ranks(2, [on_all](comm::Group& group) {
      SmallModel model(kWidth, kBlocks, kClasses);
      fill(*model, 5);
      at::Tensor weight = model->blocks[1]->up->weight;
      const at::Tensor filled = weight.detach().clone();
      const at::Tensor constant = at::full({}, 0.5F + static_cast<float>(group.rank()));
      if (on_all || group.rank() == 1) weight.set_data(constant.expand(weight.sizes()));
      group.reset_counters();
      std::int64_t elems = 0;
      for (const at::Tensor& param : model->parameters()) elems += param.numel();
      Engine engine(model, fp32_options(3), {.group = &group});
      const std::int64_t sent = group.counters()[comm::OpKind::broadcast].elems;
      EXPECT_EQ(sent, on_all ? elems - filled.numel() + 1 : elems);
      const at::Tensor expected = on_all ? at::full_like(filled, 0.5F) : filled;
      EXPECT_TRUE(engine.parameter("block1.up.weight").equal(expected));
      EXPECT_TRUE(engine.master("block1.up.weight").equal(expected));
    });
  }
}

}  // namespace
}  // namespace capstan::test
