// Options one by one: each of these tests fails where its option changes nothing.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/log.h"
#include "capstan/engine/settings.h"
#include "tests/engine/engine_fixture.h"

namespace capstan::test {
namespace {

using store::MemoryKind;

class Lines final : public Logger {
 public:
  void log(LogLevel level, std::string_view /*text*/) override { levels.push_back(level); }
  std::vector<LogLevel> levels;
};

struct World {
  World(comm::Group& group, const engine::Options& options, const Prepare& prepare = {},
        Logger* log = nullptr)
      : model(kWidth, kBlocks, kClasses),
        engine(filled(model, prepare), options, {.group = &group, .logger = log}) {}
  static SmallModel& filled(SmallModel& model, const Prepare& prepare) {
    fill(*model, 11);
    if (prepare) prepare(model);
    return model;
  }
  at::Tensor loss(std::uint64_t seed = 1) {
    const at::ScalarType type = model->head->weight.scalar_type();
    return loss_of(model, make_batch(4, kWidth, kClasses, seed), type);
  }
  SmallModel model;
  Engine engine;
};

std::size_t params_that_stay_whole(Engine& engine) {
  std::size_t count = 0;
  for (const shard::UnitSpec& unit : engine.inside().sharded().plan().units) {
    if (unit.resident) count += unit.params.size();
  }
  return count;
}

engine::Options host_options(int stage) {
  engine::Options options = fp32_options(stage);
  options.precision.params = DType::bf16;
  options.store.optimizer.placement = store::Placement::host;
  return options;
}

TEST(Averaging, DividesBeforeTheSumWhereAsked) {
  EXPECT_EQ(engine::averaging({.prescale_gradients = true}, 4).before_sum, 0.25);
  // Gradients that a 16-bit wire cannot hold arrive if they are made smaller before.
  run_ranks(2, [](comm::Group& group) {
    for (const double factor : {1.0, 1e9}) {
      engine::Options options = fp32_options(2);
      options.precision.reduce = DType::fp16;
      options.comm.predivide_factor = factor;
      World world(group, options);
      world.engine.backward(world.loss() * 1e8);
      EXPECT_EQ(world.engine.step().applied, factor > 1);
    }
  });
}

TEST(Dtypes, OfGradientShardsAndMomentsAreAsConfigured) {
  run_ranks(2, [](comm::Group& group) {
    engine::Options options = fp32_options(2);
    options.precision.params = options.precision.master = DType::bf16;
    options.precision.grad_accum = options.precision.optimizer_state = DType::bf16;
    World world(group, options);
    world.engine.backward(world.loss());
    world.engine.inside().sharded().finish_gradients();
    EXPECT_EQ(world.engine.inside().sharded().gradients().shard(0).scalar_type(), at::kBFloat16);
    EXPECT_EQ(world.engine.inside().sharded().states(0).moments.at(0).scalar_type(), at::kBFloat16);
  });
}

TEST(Buffers, BecomeRankZerosInTheConfiguredDtype) {
  run_ranks(2, [](comm::Group& group) {
    engine::Options options = fp32_options(1);
    options.precision.buffers = DType::bf16;
    World world(group, options, [&group](SmallModel& model) {
      model->register_buffer("extra", at::full({3}, 5.0 + group.rank()));
    });
    const at::Tensor buffer = world.model->named_buffers()["extra"];
    EXPECT_EQ(buffer.scalar_type(), at::kBFloat16);
    EXPECT_EQ(buffer.sum().item<float>(), 15);
  });
}

TEST(Stage3, KeepsNoMoreWholeThanItMay) {
  run_ranks(2, [](comm::Group& group) {
    const auto whole = [&group](std::int64_t each, std::int64_t in_all) {
      engine::Options options = fp32_options(3);
      options.shard.persistence_threshold_elems = each;
      options.shard.persistence_total_elems = in_all;
      World world(group, options);
      return params_that_stay_whole(world.engine);
    };
    EXPECT_LT(whole(0, 1000), whole(100, 1000));
    EXPECT_EQ(whole(100, 0), whole(0, 1000));
  });
}

TEST(Stage3, GathersNothingAheadAboveTheLimitOfLiveParameters) {
  run_ranks(2, [](comm::Group& group) {
    const auto peak = [&group](std::int64_t max_live_bytes) {
      engine::Options options = fp32_options(3);
      options.shard.prefetch_bytes = 1 << 20;
      options.shard.max_live_bytes = max_live_bytes;
      World world(group, options);
      for (std::uint64_t step = 0; step < 4; ++step) {  // the order is known by the third
        world.engine.ledger().reset_peak();
        world.engine.backward(world.loss(step));
        world.engine.step();
      }
      return world.engine.ledger().peak()[MemoryKind::parameters];
    };
    EXPECT_LT(peak(1), peak(1 << 20));
  });
}

TEST(Stage3, GathersNothingAheadWithoutOverlap) {
  run_ranks(2, [](comm::Group& group) {
    engine::Options options = fp32_options(3);
    options.shard.prefetch_bytes = 1 << 20;
    options.shard.overlap_comm = false;
    World world(group, options);
    EXPECT_EQ(world.engine.inside().sharded().settings().limits.prefetch_bytes, 0);
  });
}

// Of as many reductions as there are units, the last is on its way when backward has returned, or
// none is.
TEST(Stage2, WaitsForEachReductionWithoutOverlap) {
  run_ranks(2, [](comm::Group& group) {
    for (const bool overlap : {true, false}) {
      engine::Options options = fp32_options(2);
      options.shard.overlap_comm = overlap;
      World world(group, options);
      group.reset_counters();
      world.engine.backward(world.loss());
      EXPECT_EQ(group.counters()[comm::OpKind::reduce_scatter].calls,
                std::ssize(world.engine.inside().sharded().plan().units) - (overlap ? 1 : 0));
      world.engine.step();
    }
  });
}

TEST(Step, IsTakenAtEveryCallWhereTheCallerCountsMicroBatches) {
  run_ranks(1, [](comm::Group& group) {
    engine::Options options = fp32_options(0);
    options.batch = {.train_samples = 6, .micro_samples = 3, .accumulation_steps = 2};
    for (const bool managed : {true, false}) {
      options.batch.managed_accumulation = managed;
      World world(group, options);
      world.engine.backward(world.loss());
      EXPECT_EQ(world.engine.step().boundary, !managed);
      EXPECT_EQ(world.engine.progress().samples, managed ? 0 : 3);
    }
  });
}

TEST(Step, CountsTheSamplesOfTheBackwardsThatTheCallerMade) {
  run_ranks(2, [](comm::Group& group) {
    engine::Options options = fp32_options(2);
    options.batch = {.train_samples = 12, .micro_samples = 3, .accumulation_steps = 2};
    options.batch.managed_accumulation = false;
    World world(group, options);
    for (int i = 0; i < 3; ++i) world.engine.backward(world.loss());
    EXPECT_EQ(world.engine.step().samples, 3 * 6);
    world.engine.backward(world.loss());
    world.engine.clear_gradients();  // what is forgotten is not learned from
    world.loss().backward();
    EXPECT_EQ(world.engine.step().samples, 6);
    EXPECT_EQ(world.engine.progress().samples, 4 * 6);
    EXPECT_EQ(world.engine.progress().step_calls, 2);
  });
}

TEST(Step, CountersThatAreSetLeaveTheOptimizerWhereItIs) {
  run_ranks(1, [](comm::Group& group) {
    World world(group, fp32_options(1));
    world.engine.backward(world.loss());
    world.engine.step();
    engine::RunState& run = world.engine.inside().run;
    engine::Progress other = run.progress;
    other.steps = 100;
    other.skipped = 7;
    run.set_progress(other);
    EXPECT_EQ(world.engine.progress().applied(), 93);
    EXPECT_EQ(run.optimizer_steps(), 1);
    EXPECT_EQ(run.schedule_steps(), 1);
  });
}

TEST(Step, TakesBadGradientsWhereNobodyShallLook) {
  run_ranks(2, [](comm::Group& group) {
    for (const bool check : {true, false}) {
      engine::Options options = fp32_options(1);
      options.precision.params = DType::bf16;
      options.precision.check_grad_overflow = check;
      World world(group, options);
      world.engine.backward(world.loss() * std::numeric_limits<float>::infinity());
      EXPECT_EQ(world.engine.step().applied, !check);
    }
  });
}

TEST(Step, UsesTheMomentumOfTheSchedule) {
  engine::Options options = fp32_options(1);
  schedule::OneCycle cycle{.cycle_min_lr = {1e-3}, .cycle_max_lr = {1e-2}, .first_steps = 4};
  cycle.cycle_min_mom = {0.1};
  cycle.cycle_max_mom = {0.2};
  options.schedule = cycle;
  const Trained moved = train(2, options, plain_micro);
  cycle.cycle_momentum = false;
  options.schedule = cycle;
  EXPECT_FALSE(all_equal(moved.params, train(2, options, plain_micro).params));
}

TEST(Log, SaysNothingBelowItsLevel) {
  run_ranks(1, [](comm::Group& group) {
    for (const LogLevel level : {LogLevel::info, LogLevel::warning}) {
      engine::Options options = fp32_options(1);
      options.log_level = level;
      Lines lines;
      const World world(group, options, {}, &lines);
      EXPECT_EQ(lines.levels.empty(), level == LogLevel::warning);
    }
  });
}

TEST(Offload, TakesTheShareThatIsAskedFor) {
  run_ranks(2, [](comm::Group& group) {
    const auto on_host = [&group](double ratio) {
      engine::Options options = host_options(2);
      options.store.optimizer.ratio = ratio;
      World world(group, options);
      const shard::ShardedModel& sharded = world.engine.inside().sharded();
      return std::ranges::count_if(sharded.step_order(),
                                   [&](int unit) { return sharded.states(unit).on_host; });
    };
    EXPECT_GT(on_host(0.5), 0);
    EXPECT_LT(on_host(0.5), on_host(1.0));
  });
}

TEST(Offload, TakesOnlyWhatTheDeviceCannotHold) {
  run_ranks(2, [](comm::Group& group) {
    for (const std::int64_t room : {std::int64_t{0}, std::int64_t{1} << 40}) {
      engine::Options options = host_options(2);
      options.store.optimizer.auto_ratio = true;
      options.store.device_bytes = room;
      options.store.activation_bytes = 0;
      World world(group, options);
      const double share = world.engine.inside().sharded().settings().host.homes.optimizer.share;
      EXPECT_TRUE(room == 0 ? share > 0.9 : share == 0) << share;
    }
  });
}

TEST(Offload, UpdatesBesideTheNextForwardWhereAsked) {
  run_ranks(2, [](comm::Group& group) {
    for (const bool late : {true, false}) {
      engine::Options options = host_options(3);
      options.store.optimizer.late_updates = late;
      World world(group, options);
      const shard::ShardedModel& sharded = world.engine.inside().sharded();
      EXPECT_EQ(std::ranges::any_of(sharded.step_order(),
                                    [&](int unit) { return sharded.updates().can_be_late(unit); }),
                late);
    }
  });
}

TEST(Offload, UpdatesWithTheShareOfCoresThatIsAskedFor) {
  const int threads_before = at::get_num_threads();
  run_ranks(1, [](comm::Group& group) {
    at::set_num_threads(8);
    const auto threads = [&group](double share) {
      engine::Options options = host_options(2);
      options.store.optimizer.core_share = share;
      const World world(group, options);
      const std::filesystem::directory_iterator all("/proc/self/task");
      return std::distance(begin(all), end(all));
    };
    (void)threads(1);  // libtorch starts its own threads with the first use
    EXPECT_EQ(threads(1) - threads(0.5), 4);
    EXPECT_EQ(threads(1) - threads(0.01), 7);
  });
  at::set_num_threads(threads_before);
}

TEST(Offload, HandsItsSizesAndPinningOn) {
  engine::Options options = host_options(2);
  options.shard.sub_group_elems = 100;
  options.store.optimizer.pin = false;
  const shard::Settings settings =
      engine::shard_settings(options, layout::Mesh({.shard = 2}, 2), {});
  EXPECT_EQ(settings.host.piece_elems, 100);
  EXPECT_FALSE(settings.host.homes.optimizer.pin);
}

TEST(Offload, PinsTheMemoryOfEachSectionAsThatSectionSays) {
  engine::Options options = host_options(3);
  options.store.params.placement = store::Placement::host;
  for (const bool states : {true, false}) {
    for (const bool params : {true, false}) {
      options.store.optimizer.pin = states;
      options.store.params.pin = params;
      const shard::HostSettings host =
          engine::shard_settings(options, layout::Mesh({.shard = 2}, 2), {}).host;
      EXPECT_EQ(host.homes.optimizer.pin, states);
      EXPECT_EQ(host.homes.params.pin, params);
    }
  }
}

TEST(Description, SaysOverHowManyRanksStatesAreCut) {
  for (const auto& [stage, cut] : {std::pair(0, 1), std::pair(3, 2)}) {
    run_ranks(2, [&, stage = stage, cut = cut](comm::Group& group) {
      SmallModel model(kWidth, kBlocks, kClasses);
      Engine engine(model, fp32_options(stage), {.group = &group});
      EXPECT_THAT(engine.describe(),
                  testing::HasSubstr(fmt::format(
                      "\nmesh                    data-parallel 2, parameter-parallel {}", cut)));
    });
  }
}

}  // namespace
}  // namespace capstan::test
