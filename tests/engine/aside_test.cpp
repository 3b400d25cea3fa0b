// States that leave the device and come back: room is made, and no number differs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "capstan/shard/torch_dtype.h"
#include "tests/engine/engine_fixture.h"

namespace capstan::engine {
namespace {

using store::MemoryKind;

constexpr shard::AsideKinds kAll{
    .moments = true, .masters = true, .params = true, .gradients = true};

Options stage_options(int stage, DType dtype) {
  Options options = test::fp32_options(stage);
  options.precision.params = dtype;
  return options;
}

void one_backward(Engine& engine, test::SmallModel& model, std::uint64_t seed) {
  const auto type = shard::torch_dtype(engine.options().precision.params);
  engine.backward(
      test::loss_of(model, test::make_batch(4, test::kWidth, test::kClasses, seed), type));
}

TEST(Aside, EverythingLeavesTheDeviceAndTrainingGoesOnInTheSameBits) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      for (const int world : {1, 2}) {
        const Options options = stage_options(stage, dtype);
        const auto leaving = [](Engine& engine, test::SmallModel& model, std::uint64_t seed) {
          engine.offload_states(kAll);  // forward, or backward, brings all back
          one_backward(engine, model, seed);
          EXPECT_EQ(engine.offloaded_states(), shard::AsideKinds{});
          engine.inside().sharded().gradients().reducer().memory();  // waits for what is on its way
          const store::MemoryUse before = engine.ledger().now();
          engine.offload_states(kAll);
          EXPECT_EQ(engine.ledger().now().total(), 0) << to_text(engine.ledger().now());
          EXPECT_EQ(engine.ledger(store::Placement::host).now(), before);
          EXPECT_EQ(engine.offloaded_states(), kAll);
          engine.offload_states(kAll);  // again: the same
          EXPECT_EQ(engine.ledger(store::Placement::host).now(), before);
          engine.reload_states();
          EXPECT_EQ(engine.ledger().now(), before);
          EXPECT_EQ(engine.ledger(store::Placement::host).now().total(), 0);
          engine.offload_states(kAll);  // and the step brings it back
        };
        const std::string what = fmt::format("stage {}, {}, {} ranks", stage, name(dtype), world);
        const test::Trained plain = test::train(world, options, one_backward);
        EXPECT_TRUE(test::all_equal(plain.params, test::train(world, options, leaving).params))
            << what;
      }
    }
  }
}

TEST(Aside, TakesOnlyWhatIsAskedFor) {
  run_ranks(2, [](comm::Group& group) {
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    Engine engine(model, stage_options(2, DType::bf16), {.group = &group});
    one_backward(engine, model, 1);
    engine.inside().sharded().gradients().reducer().memory();  // waits for what is on its way
    const store::MemoryUse before = engine.ledger().now();
    const auto stays = [&](const shard::AsideKinds& kinds, MemoryKind kind) {
      engine.offload_states(kinds);
      return engine.ledger().now()[kind] == before[kind];
    };
    EXPECT_TRUE(stays({.moments = true, .masters = true}, MemoryKind::parameters));
    EXPECT_EQ(engine.ledger().now()[MemoryKind::optimizer], 0);
    EXPECT_TRUE(stays({.params = true}, MemoryKind::optimizer));
    EXPECT_EQ(engine.ledger().now()[MemoryKind::parameters], 0);
    EXPECT_TRUE(stays({.gradients = true}, MemoryKind::parameters));
    EXPECT_EQ(engine.ledger().now()[MemoryKind::gradients], 0);
    EXPECT_TRUE(stays({.masters = true}, MemoryKind::gradients));
    EXPECT_GT(engine.ledger().now()[MemoryKind::optimizer], 0);
    engine.reload_states();
    EXPECT_EQ(engine.ledger().now(), before);
  });
}

TEST(Aside, GradientsThatAreForgottenMeanwhileDoNotComeBack) {
  run_ranks(1, [](comm::Group& group) {
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    Engine engine(model, stage_options(2, DType::bf16), {.group = &group});
    const store::MemoryUse rest = engine.ledger().now();
    one_backward(engine, model, 1);
    engine.offload_states(kAll);
    engine.clear_gradients();
    engine.reload_states();
    EXPECT_EQ(engine.ledger().now(), rest);
    one_backward(engine, model, 2);
    EXPECT_TRUE(engine.step().applied);
  });
}

TEST(Aside, StatesOfAnOptimizerOfLibtorchGoToo) {
  const auto last_of = [](bool leaves) {
    at::Tensor last;
    run_ranks(1, [&](comm::Group& group) {
      test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
      test::fill(*model, 11);
      Options options = stage_options(3, DType::bf16);
      options.optimizer.reset();
      Engine engine(model, options,
                    {.group = &group, .optimizer = [](std::vector<at::Tensor> pieces) {
                       return std::make_unique<torch::optim::AdamW>(std::move(pieces));
                     }});
      for (int step = 0; step < 3; ++step) {
        one_backward(engine, model, static_cast<std::uint64_t>(step));
        engine.step();
        if (!leaves) continue;
        const std::int64_t states = engine.ledger(store::Placement::host).now().total();
        engine.offload_states({.moments = true});
        EXPECT_GT(engine.ledger(store::Placement::host).now().total(), states);
      }
      last = test::masters(engine).front();
    });
    return last;
  };
  EXPECT_TRUE(last_of(true).equal(last_of(false)));
}

}  // namespace
}  // namespace capstan::engine
