// Hybrid sharding: the ranks as a grid of replicas and shards.
#include <gmock/gmock.h>

#include "capstan/base/error.h"
#include "capstan/shard/memory.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thread_groups.h"

namespace capstan::test {
namespace {

using comm::OpKind;
using layout::Axes;
using layout::Axis;
using testing::HasSubstr;

constexpr int kWorld = 4;
constexpr double kSmooth = 1e-3;  // of Adam: rounding in a tiny gradient stays rounding

// Of one rank: what to do with its engine.
using Act = std::function<void(Engine&, SmallModel&, int rank)>;

void on_ranks(int world, const engine::Options& options, const Act& act) {
  ThreadMeetings meetings;
  run_ranks(world, [&](comm::Group& group) {
    ThreadGroups groups(meetings, group.rank());
    SmallModel model(kWidth, kBlocks, kClasses);
    fill(*model, 11);
    Engine engine(model, options, {.group = {group, groups}});
    act(engine, model, group.rank());
  });
}

void train_steps(Engine& engine, SmallModel& model, int rank, int steps) {
  const auto backwards = static_cast<int>(engine.options().batch.accumulation_steps);
  const at::ScalarType dtype =
      engine.options().precision.params == DType::bf16 ? at::kBFloat16 : at::kFloat;
  for (int micro = 0; micro < steps * backwards; ++micro) {
    const auto seed = static_cast<std::uint64_t>(1000 + 10 * micro + rank);
    engine.backward(loss_of(model, make_batch(4, kWidth, kClasses, seed), dtype));
    engine.step();
  }
}

// The masters after three steps, checked equal on all ranks.
std::vector<at::Tensor> trained(const engine::Options& options, int world = kWorld) {
  std::vector<std::vector<at::Tensor>> all(static_cast<std::size_t>(world));
  on_ranks(world, options, [&](Engine& engine, SmallModel& model, int rank) {
    train_steps(engine, model, rank, 3);
    all[static_cast<std::size_t>(rank)] = masters(engine);
  });
  for (const auto& other : all) EXPECT_TRUE(all_equal(all.front(), other));
  return all.front();
}

engine::Options with_shard_groups(engine::Options options, int ranks) {
  options.shard.shard_ranks = ranks;
  return options;
}

engine::Options with_near_copy(engine::Options options, int ranks) {
  options.shard.near_ranks = ranks;
  return options;
}

engine::Options summed_in_blocks(engine::Options options, int ranks) {
  options.comm.reduce_in_blocks_of = ranks;
  return options;
}

TEST(ShardGroups, GiveTheBitsOfAPlainRunThatSumsInTheirOrder) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int ranks : {1, 2}) {
      const engine::Options plain = fp32_options(stage);
      EXPECT_TRUE(all_equal(trained(with_shard_groups(plain, ranks)),
                            trained(summed_in_blocks(plain, ranks))))
          << "stage " << stage << ", shards over " << ranks;
    }
  }
}

TEST(ShardGroups, GiveThoseBitsInEveryPrecisionAndHome) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const bool offloaded : {false, true}) {
      engine::Options plain = fp32_options(3);
      plain.precision.params = dtype;
      // One reduction per step: over micro-batches first, in both orders.
      plain.batch.accumulation_steps = 2;
      plain.shard.reduce_schedule = shard::ReduceSchedule::at_step;
      if (offloaded) {
        plain.store.optimizer.placement = store::Placement::host;
        plain.store.params.placement = store::Placement::host;
      }
      EXPECT_TRUE(
          all_equal(trained(with_shard_groups(plain, 2)), trained(summed_in_blocks(plain, 2))))
          << name(dtype) << (offloaded ? ", offloaded" : "");
    }
  }
}

// With another order of the sum, and with sums over replicas once for all micro-batches.
TEST(ShardGroups, AreWithinRoundingOfAPlainRun) {
  for (const int stage : {1, 2, 3}) {
    for (const bool offloaded : {false, true}) {
      engine::Options plain = fp32_options(stage);
      plain.batch.accumulation_steps = 3;
      plain.gradient_clipping = 0.1;
      plain.optimizer->hyper.eps = kSmooth;
      if (offloaded) plain.store.optimizer.placement = store::Placement::host;
      const std::vector<at::Tensor> expected = trained(plain);
      const std::vector<at::Tensor> hybrid = trained(with_shard_groups(plain, 2));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::allclose(hybrid[i], expected[i], 1e-4, 1e-5));
      }
    }
  }
}

TEST(ShardGroups, CountEveryParameterOnceInTheNorm) {
  engine::Options plain = fp32_options(3);
  plain.gradient_clipping = 1e9;  // asks for the norm, clips nothing
  const auto norm_of = [](const engine::Options& options) {
    double norm = 0;
    on_ranks(kWorld, options, [&](Engine& engine, SmallModel& model, int rank) {
      const auto seed = static_cast<std::uint64_t>(rank);
      engine.backward(loss_of(model, make_batch(4, kWidth, kClasses, seed), at::kFloat));
      const double mine = engine.step().grad_norm;
      if (rank == 0) norm = mine;
    });
    return norm;
  };
  const double expected = norm_of(plain);
  EXPECT_GT(expected, 0);
  EXPECT_NEAR(norm_of(with_shard_groups(plain, 2)), expected, 1e-5 * expected);
  EXPECT_NEAR(norm_of(with_shard_groups(plain, 1)), expected, 1e-5 * expected);
}

TEST(ShardGroups, CountSlotsOnceForLamb) {
  engine::Options plain = fp32_options(2);
  plain.optimizer->kind = optim::Kind::lamb;
  plain.optimizer->hyper.eps = kSmooth;
  const std::vector<at::Tensor> expected = trained(plain);
  const std::vector<at::Tensor> hybrid = trained(with_shard_groups(plain, 2));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::allclose(hybrid[i], expected[i], 1e-4, 1e-5));
  }
}

TEST(NearCopy, GivesTheBitsOfPlainStage3) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const bool offloaded : {false, true}) {
      engine::Options plain = fp32_options(3);
      plain.precision.params = dtype;
      plain.gradient_clipping = 0.1;
      plain.batch.accumulation_steps = 2;
      if (offloaded) {
        plain.store.optimizer.placement = store::Placement::host;
        plain.store.params.placement = store::Placement::host;
      }
      EXPECT_TRUE(all_equal(trained(with_near_copy(plain, 2)), trained(plain)))
          << name(dtype) << (offloaded ? ", offloaded" : "");
    }
  }
}

TEST(NearCopy, IsNotUsedAfterTheValuesChanged) {
  on_ranks(kWorld, with_near_copy(fp32_options(3), 2), [](Engine& engine, SmallModel& model, int) {
    const Batch batch = make_batch(4, kWidth, kClasses, 5);
    const at::Tensor before = loss_of(model, batch, at::kFloat);
    const std::string name = "block1.up.weight";
    engine.set_parameter(name, engine.parameter(name).zero_());
    const at::Tensor after = loss_of(model, batch, at::kFloat);
    EXPECT_NE(before.item<float>(), after.item<float>());
    EXPECT_TRUE(engine.parameter(name).eq(0).all().item<bool>());
  });
}

comm::Counters over(Engine& engine, Axes axes) {
  for (const comm::AxesTraffic& traffic : engine.inside().sharded().mesh().traffic()) {
    if (traffic.axes == axes) return traffic.counters;
  }
  return {};
}

// Bytes of what is gathered for use, once.
std::int64_t whole_bytes(Engine& engine) {
  std::int64_t bytes = 0;
  for (const shard::UnitSpec& unit : engine.inside().sharded().plan().units) {
    if (!unit.resident) bytes += unit.whole_bytes();
  }
  return bytes;
}

std::int64_t resident_bytes(Engine& engine) {
  std::int64_t bytes = 0;
  for (const shard::UnitSpec& unit : engine.inside().sharded().plan().units) {
    if (unit.resident) bytes += unit.whole_bytes();
  }
  return bytes;
}

// The norm: two numbers of every rank, once a step.
constexpr std::int64_t kNormBytes = std::int64_t{2} * sizeof(double) * kWorld;

// What one step, of two micro-batches, moved over these axes.
struct StepTraffic {
  std::int64_t gathered = 0;  // bytes
  std::int64_t reduced = 0;   // calls
  std::int64_t summed = 0;    // bytes of sums over replicas
};

StepTraffic step_traffic(Engine& engine, SmallModel& model, int rank, Axes axes) {
  train_steps(engine, model, rank, 1);
  const comm::Counters before = over(engine, axes);
  train_steps(engine, model, rank, 1);
  const comm::Counters after = over(engine, axes);
  return {after[OpKind::all_gather].bytes - before[OpKind::all_gather].bytes,
          after[OpKind::reduce_scatter].calls - before[OpKind::reduce_scatter].calls,
          after[OpKind::all_reduce].bytes - before[OpKind::all_reduce].bytes};
}

engine::Options two_micro_batches() {
  engine::Options options = fp32_options(3);
  options.batch.accumulation_steps = 2;
  options.shard.prefetch_bytes = 0;
  return options;
}

TEST(NearCopy, KeepsAllGathersButTheFirstOfAStepNear) {
  const engine::Options options = with_near_copy(two_micro_batches(), 2);
  on_ranks(kWorld, options, [](Engine& engine, SmallModel& model, int rank) {
    const std::int64_t whole = whole_bytes(engine);
    // Forward and backward of two micro-batches: four gathers, of which one is far.
    EXPECT_EQ(step_traffic(engine, model, rank, Axis::shard).gathered, 3 * whole);
  });
  on_ranks(kWorld, options, [](Engine& engine, SmallModel& model, int rank) {
    const StepTraffic far = step_traffic(engine, model, rank, layout::kDataAxes);
    EXPECT_EQ(far.gathered, whole_bytes(engine) + resident_bytes(engine) + kNormBytes);
    EXPECT_EQ(over(engine, Axis::replica)[OpKind::all_reduce].calls, 0);
  });
}

TEST(ShardGroups, GatherInsideAndSumOverReplicasOnceAStep) {
  const engine::Options options = with_shard_groups(two_micro_batches(), 2);
  on_ranks(kWorld, options, [](Engine& engine, SmallModel& model, int rank) {
    const std::int64_t gathers = 4 * whole_bytes(engine) + resident_bytes(engine);
    const StepTraffic inside = step_traffic(engine, model, rank, Axis::shard);
    EXPECT_EQ(inside.gathered, gathers);
    EXPECT_EQ(inside.reduced, 2 * std::ssize(engine.inside().sharded().plan().units));
  });
  on_ranks(kWorld, options, [](Engine& engine, SmallModel& model, int rank) {
    std::int64_t sums = 0;
    for (const shard::UnitSpec& unit : engine.inside().sharded().plan().units) {
      sums += unit.layout.shard_elems() * 4;
    }
    EXPECT_EQ(step_traffic(engine, model, rank, Axis::replica).summed, sums);
  });
  on_ranks(kWorld, options, [](Engine& engine, SmallModel& model, int rank) {
    const StepTraffic all = step_traffic(engine, model, rank, layout::kDataAxes);
    EXPECT_EQ(all.gathered, kNormBytes);
    EXPECT_EQ(all.reduced, 0);
  });
}

TEST(Hybrid, MemoryIsWhatTheLayoutSays) {
  for (const engine::Options& options :
       {with_shard_groups(fp32_options(3), 2), with_near_copy(fp32_options(3), 2)}) {
    on_ranks(kWorld, options, [](Engine& engine, SmallModel& model, int rank) {
      train_steps(engine, model, rank, 2);
      EXPECT_EQ(engine.ledger().now(), shard::forecast(engine.inside().sharded().plan(),
                                                       engine.inside().sharded().settings())
                                           .rest);
    });
  }
}

TEST(Hybrid, CheckpointsLoadIntoAnyOtherShape) {
  const engine::Options plain = fp32_options(3);
  const std::vector<engine::Options> shapes = {
      plain, with_shard_groups(plain, 2), with_shard_groups(plain, 1), with_near_copy(plain, 2)};
  for (const engine::Options& from : shapes) {
    const TempFolder folder;
    std::vector<at::Tensor> saved;
    on_ranks(kWorld, from, [&](Engine& engine, SmallModel& model, int rank) {
      train_steps(engine, model, rank, 2);
      engine.save_checkpoint(folder.path());
      const std::vector<at::Tensor> mine = masters(engine);
      if (rank == 0) saved = mine;
    });
    for (const engine::Options& to : shapes) {
      for (const int world : {2, 4}) {
        on_ranks(world, to, [&](Engine& engine, SmallModel& model, int) {
          {
            const torch::NoGradGuard no_grad;
            EXPECT_TRUE(engine.load_checkpoint(folder.path()).has_value());
          }
          EXPECT_TRUE(all_equal(masters(engine), saved));
          EXPECT_TRUE(loss_of(model, make_batch(2, kWidth, kClasses, 1), at::kFloat)
                          .isfinite()
                          .item<bool>());
        });
      }
    }
  }
}

TEST(Hybrid, NormsOfSetsOfGradientsCountReplicasOnce) {
  on_ranks(kWorld, with_shard_groups(fp32_options(3), 2),
           [](Engine& engine, SmallModel& model, int) {
             engine.backward(loss_of(model, make_batch(4, kWidth, kClasses, 9), at::kFloat));
             engine::Access& access = engine.inside().access();
             const double norm = engine.gradient("block1.up.weight").norm().item<double>();
             const std::vector<double> norms =
                 access.gradient_norms({{access.find("block1.up.weight")}});
             EXPECT_NEAR(norms.at(0), norm, 1e-5 * norm);
           });
}

std::string refusal(const engine::Options& options, int world, bool with_maker = true) {
  std::string text;
  try {
    ThreadMeetings meetings;
    run_ranks(world, [&](comm::Group& group) {
      ThreadGroups groups(meetings, group.rank());
      SmallModel model(kWidth, kBlocks, kClasses);
      const engine::Ranks whole(group, groups);
      const Engine engine(model, options, {.group = with_maker ? whole : engine::Ranks(&group)});
    });
  } catch (const ConfigError& error) {
    text = error.what();
  }
  return text;
}

TEST(Hybrid, SaysWhatCannotBe) {
  EXPECT_THAT(refusal(with_shard_groups(fp32_options(3), 3), 4),
              HasSubstr("4 ranks do not form groups of 3"));
  EXPECT_THAT(refusal(with_near_copy(with_shard_groups(fp32_options(3), 2), 2), 4),
              HasSubstr("choose one of the two"));
  EXPECT_THAT(refusal(with_shard_groups(fp32_options(3), 2), 4, /*with_maker=*/false),
              AllOf(HasSubstr("nobody can make one"), HasSubstr("Parts::group = world")));
  // As many as there are: plain runs.
  EXPECT_EQ(refusal(with_shard_groups(fp32_options(3), 4), 4, /*with_maker=*/false), "");
  EXPECT_EQ(refusal(with_near_copy(fp32_options(3), 4), 4, /*with_maker=*/false), "");
}

}  // namespace
}  // namespace capstan::test
