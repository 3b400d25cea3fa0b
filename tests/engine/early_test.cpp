// Updates that run in backward: guessed, and dropped where the guess was wrong, without a trace in
// any number.
#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "capstan/engine/early_choice.h"
#include "capstan/shard/memory.h"
#include "tests/engine/engine_fixture.h"

namespace capstan::engine {
namespace {

using namespace std::chrono_literals;
using store::EarlyUpdates;
using store::MemoryKind;

Options early_options(int stage, EarlyUpdates early) {
  Options options = test::fp32_options(stage);
  options.precision.params = DType::bf16;
  options.store.optimizer.placement = store::Placement::host;
  options.store.optimizer.late_updates = false;
  options.store.optimizer.early_updates = early;
  return options;
}

void backward(Engine& engine, test::SmallModel& model, std::uint64_t seed) {
  const auto batch = test::make_batch(4, test::kWidth, test::kClasses, seed);
  engine.backward(test::loss_of(model, batch, at::kBFloat16));
}

// Units that were updated before the step, waited for.
int made_in_backward(Engine& engine, const std::vector<bool>& may) {
  shard::ShardedModel& sharded = engine.inside().sharded();
  sharded.finish_gradients();
  if (sharded.updates().early() == nullptr) return 0;
  int made = 0;
  for (const int unit : sharded.step_order()) {
    if (!may[static_cast<std::size_t>(unit)]) continue;
    const auto give_up = std::chrono::steady_clock::now() + 20s;
    while (!sharded.updates().made_early(unit) && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::sleep_for(1ms);
    }
    made += static_cast<int>(sharded.updates().made_early(unit));
  }
  return made;
}

int made_in_backward(Engine& engine) {
  return made_in_backward(engine,
                          std::vector<bool>(engine.inside().sharded().plan().units.size(), true));
}

struct World {
  explicit World(comm::Group& group, const Options& options)
      : model(test::kWidth, test::kBlocks, test::kClasses),
        engine(filled(model), options, {.group = &group}) {}
  static test::SmallModel& filled(test::SmallModel& model) {
    test::fill(*model, 11);
    return model;
  }
  test::SmallModel model;
  Engine engine;
};

TEST(EarlyUpdates, AreMadeInBackwardAndKeptByTheStep) {
  run_ranks(2, [](comm::Group& group) {
    World world(group, early_options(2, EarlyUpdates::always));
    World plain(group, early_options(2, EarlyUpdates::never));
    for (std::uint64_t step = 0; step < 3; ++step) {
      backward(world.engine, world.model, step);
      backward(plain.engine, plain.model, step);
      const auto units = static_cast<int>(world.engine.inside().sharded().step_order().size());
      EXPECT_EQ(made_in_backward(world.engine), units);
      world.engine.step();
      plain.engine.step();
      EXPECT_FALSE(world.engine.inside().sharded().updates().made_early(0));
    }
    EXPECT_TRUE(test::all_equal(test::masters(world.engine), test::masters(plain.engine)));
  });
}

// Everything that happens between backward and step and makes the guess a wrong one.
TEST(EarlyUpdates, AreDroppedWhereSomethingChangesBeforeTheStep) {
  using Change = std::function<void(World&)>;
  const std::vector<Change> changes = {
      [](World& world) {
        world.engine.set_gradient("block1.up.weight",
                                  at::zeros_like(world.engine.gradient("block1.up.weight")));
      },
      [](World& world) { world.engine.inside().step().set_hyper_params({{.lr = 0.5}}); },
      [](World& world) { backward(world.engine, world.model, 77); },
      [](World& world) {
        const at::Tensor old = world.engine.state("block1.up.weight", "exp_avg");
        world.engine.set_state("block1.up.weight", "exp_avg", at::ones_like(old));
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    run_ranks(2, [&](comm::Group& group) {
      std::vector<std::vector<at::Tensor>> results;
      for (const EarlyUpdates early : {EarlyUpdates::never, EarlyUpdates::always}) {
        World world(group, early_options(3, early));
        backward(world.engine, world.model, 5);
        EXPECT_EQ(made_in_backward(world.engine) > 0, early == EarlyUpdates::always);
        changes[i](world);
        world.engine.step();
        backward(world.engine, world.model, 6);
        world.engine.step();
        results.push_back(test::masters(world.engine));
      }
      EXPECT_TRUE(test::all_equal(results[0], results[1])) << "change " << i;
    });
  }
}

TEST(EarlyUpdates, RunInTheLastBackwardOfAStepOnly) {
  run_ranks(2, [](comm::Group& group) {
    Options options = early_options(2, EarlyUpdates::always);
    options.batch.accumulation_steps = 2;
    World world(group, options);
    backward(world.engine, world.model, 1);
    EXPECT_FALSE(world.engine.inside().sharded().updates().early()->is_open());
    world.engine.step();
    backward(world.engine, world.model, 2);
    EXPECT_TRUE(world.engine.inside().sharded().updates().early()->is_open());
    EXPECT_GT(made_in_backward(world.engine), 0);
    world.engine.step();
  });
}

// As Accelerate does: it names boundaries, and calls step() at them only.
TEST(EarlyUpdates, OpenInTheBackwardThatTheCallerCallsTheLast) {
  run_ranks(1, [](comm::Group& group) {
    Options options = early_options(2, EarlyUpdates::always);
    options.batch = {.train_samples = 12, .micro_samples = 4, .accumulation_steps = 3};
    World world(group, options);
    for (int step = 1; step <= 2; ++step) {
      for (const bool last : {false, false, true}) {
        const auto batch = test::make_batch(4, test::kWidth, test::kClasses, 5);
        world.engine.backward(test::loss_of(world.model, batch, at::kBFloat16), {.boundary = last});
        EXPECT_EQ(world.engine.inside().sharded().updates().early()->is_open(), last);
      }
      EXPECT_TRUE(world.engine.step(true).applied);
      EXPECT_EQ(world.engine.progress().micro_steps, 3 * step);
    }
  });
}

TEST(EarlyUpdates, TakeNoMoreMemoryThanTheyMay) {
  run_ranks(2, [](comm::Group& group) {
    Options options = early_options(3, EarlyUpdates::always);
    const auto units_within = [&](std::int64_t bytes) {
      options.store.optimizer.early_bytes = bytes;
      World world(group, options);
      shard::ShardedModel& sharded = world.engine.inside().sharded();
      backward(world.engine, world.model, 3);
      const std::vector<bool> early = shard::early_units(sharded.plan(), sharded.settings());
      const auto expected = std::count(early.begin(), early.end(), true);
      std::int64_t elems = 0;
      for (const int unit : sharded.step_order()) {
        if (early[static_cast<std::size_t>(unit)]) elems += sharded.states(unit).owned.range.size();
      }
      EXPECT_LE(14 * elems, bytes);
      EXPECT_EQ(made_in_backward(world.engine, early), expected);
      EXPECT_EQ(sharded.places().host_ledger().now().total(),
                shard::host_forecast(sharded.plan(), sharded.settings()).total());
      world.engine.step();
      return expected;
    };
    const auto all = units_within(1 << 20);
    const auto some = units_within(14 * 600);
    EXPECT_GT(some, 0);
    EXPECT_LT(some, all);
  });
}

// Both ways are tried; then the expected time decides, and follows how often guesses are right.
TEST(EarlyChoice, TakesWhatIsFasterAsMeasured) {
  EarlyChoice choice;
  const auto train = [&](int steps, bool guessed) {
    int early = 0;
    for (int i = 0; i < steps; ++i) {
      const bool now = choice.early();
      early += static_cast<int>(now);
      choice.step_ended(now, guessed, !now ? 10ms : guessed ? 7ms : 12ms);
    }
    return early;
  };
  train(9, true);  // trials
  EXPECT_EQ(train(20, true), 20);
  train(40, false);  // clipped at every step
  EXPECT_EQ(train(20, false), 0);
  train(40, true);
  EXPECT_EQ(train(20, true), 20);
}

}  // namespace
}  // namespace capstan::engine
