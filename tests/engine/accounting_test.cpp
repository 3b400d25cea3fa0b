// Memory and traffic are arithmetic: what the layout says is what is used.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/shard/memory.h"
#include "tests/engine/engine_fixture.h"

namespace capstan::test {
namespace {

using comm::OpKind;
using store::MemoryKind;

constexpr int kEqualBlocks = 8;

engine::Options options_for(int stage, DType dtype) {
  engine::Options options = fp32_options(stage);
  options.precision.params = dtype;
  options.shard.prefetch_bytes = 0;
  return options;
}

struct Peaks {
  store::MemoryUse rest, forward, backward, step;
};

Peaks measure(comm::Group& group, const engine::Options& options) {
  SmallModel model(kWidth, kEqualBlocks, kClasses);
  Engine engine(model, options, {.group = &group});
  const at::ScalarType dtype = options.precision.params == DType::fp32 ? at::kFloat : at::kBFloat16;
  Peaks peaks;
  // Two steps: the second is what a training run looks like.
  for (std::uint64_t step = 0; step < 2; ++step) {
    store::Ledger& ledger = engine.ledger();
    peaks.rest = ledger.now();
    ledger.reset_peak();
    const at::Tensor loss = loss_of(model, make_batch(4, kWidth, kClasses, step), dtype);
    peaks.forward = ledger.peak();
    ledger.reset_peak();
    engine.backward(loss);
    peaks.backward = ledger.peak();
    ledger.reset_peak();
    engine.step();
    peaks.step = ledger.peak();
  }
  const shard::MemoryForecast said =
      shard::forecast(engine.inside().sharded().plan(), engine.inside().sharded().settings());
  const auto expect = [&](const char* phase, const store::MemoryUse& used,
                          const store::MemoryUse& forecast) {
    EXPECT_EQ(used, forecast) << fmt::format("stage {}, world {}, {}: used {}, forecast {}",
                                             options.shard.stage, group.size(), phase,
                                             to_text(used), to_text(forecast));
  };
  expect("rest", peaks.rest, said.rest);
  expect("forward", peaks.forward, said.forward);
  expect("backward", peaks.backward, said.backward);
  expect("step", peaks.step, said.step);
  return peaks;
}

TEST(Memory, EqualsWhatTheLayoutSaysInEveryPhase) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const int world : {1, 2, 3}) {
      for (const int stage : {0, 1, 2, 3}) {
        for (const auto schedule :
             {shard::ReduceSchedule::at_step, shard::ReduceSchedule::per_backward}) {
          engine::Options options = options_for(stage, dtype);
          options.shard.reduce_schedule = schedule;
          run_ranks(world, [&](comm::Group& group) { measure(group, options); });
        }
      }
    }
  }
}

TEST(Memory, AHigherStageNeverUsesMore) {
  for (const int world : {2, 4}) {
    store::MemoryUse lower;
    for (const int stage : {0, 1, 2, 3}) {
      store::MemoryUse most;
      run_ranks(world, [&](comm::Group& group) {
        const Peaks peaks = measure(group, options_for(stage, DType::bf16));
        if (group.rank() != 0) return;
        for (const store::MemoryUse& use :
             {peaks.rest, peaks.forward, peaks.backward, peaks.step}) {
          for (const auto kind :
               {MemoryKind::parameters, MemoryKind::gradients, MemoryKind::optimizer}) {
            most[kind] = std::max(most[kind], use[kind]);
          }
        }
      });
      if (stage > 0) {
        EXPECT_LE(most.total(), lower.total()) << "stage " << stage << ", world " << world;
      }
      lower = most;
    }
  }
}

TEST(Memory, OfParametersIsTheShardsWhenTheyAreGivenBackAndAllAgainAfterTheNextUse) {
  for (const int world : {1, 2, 3}) {
    engine::Options options = options_for(3, DType::bf16);
    options.shard.persistence_threshold_elems = kWidth * kWidth;  // all of a block
    run_ranks(world, [&](comm::Group& group) {
      SmallModel model(kWidth, kEqualBlocks, kClasses);
      Engine engine(model, options, {.group = &group});
      std::int64_t shards = 0;
      for (const shard::UnitSpec& unit : engine.inside().sharded().plan().units) {
        shards += unit.layout.shard_elems() * size_bytes(unit.dtype);
      }
      const store::MemoryUse before = engine.ledger().now();
      for (std::uint64_t step = 0; step < 2; ++step) {
        engine.inside().sharded().give_back();
        EXPECT_EQ(engine.ledger().now()[MemoryKind::parameters], shards);
        EXPECT_EQ(engine.inside().sharded().places().device().idle_bytes(), 0);
        engine.backward(loss_of(model, make_batch(4, kWidth, kClasses, step), at::kBFloat16));
        engine.step();
        EXPECT_EQ(engine.ledger().now(), before);
      }
    });
  }
}

TEST(Hooks, AreGoneWithTheEngine) {
  run_ranks(2, [](comm::Group& group) {
    SmallModel model(kWidth, kBlocks, kClasses);
    {
      Engine engine(model, fp32_options(3), {.group = &group});
      plain_micro(engine, model, 1);
      engine.step();
    }
    EXPECT_EQ(model->blocks[0]->observer(), nullptr);
  });
}

struct Traffic {
  std::int64_t reduced = 0;   // elements
  std::int64_t gathered = 0;  // elements, small bookkeeping left out
  std::int64_t reduced_bytes = 0;
};

Traffic traffic_of_one_step(int stage, int world, int backwards, std::int64_t& flat_elems,
                            std::int64_t& resident_elems) {
  Traffic traffic;
  run_ranks(world, [&](comm::Group& group) {
    engine::Options options = options_for(stage, DType::bf16);
    options.batch.accumulation_steps = backwards;
    SmallModel model(kWidth, kEqualBlocks, kClasses);
    Engine engine(model, options, {.group = &group});
    const auto step = [&](std::uint64_t seed) {
      for (int i = 0; i < backwards; ++i) {
        engine.backward(loss_of(model, make_batch(4, kWidth, kClasses, seed), at::kBFloat16));
        engine.step();
      }
    };
    step(1);
    group.reset_counters();
    step(2);
    if (group.rank() != 0) return;
    const comm::Counters counters = group.counters();
    traffic.reduced = counters[OpKind::reduce_scatter].elems;
    traffic.reduced_bytes = counters[OpKind::reduce_scatter].bytes;
    traffic.gathered = counters[OpKind::all_gather].elems - 2 * world;  // the gradient norm
    flat_elems = resident_elems = 0;
    for (const shard::UnitSpec& unit : engine.inside().sharded().plan().units) {
      flat_elems += unit.layout.padded_elems();
      if (unit.resident) resident_elems += unit.layout.padded_elems();
    }
  });
  return traffic;
}

TEST(Traffic, IsTheTableOfTheDesign) {
  for (const int world : {2, 3}) {
    for (const int backwards : {1, 3}) {
      std::int64_t flat = 0;
      std::int64_t resident = 0;
      const auto at = [&](int stage) {
        return traffic_of_one_step(stage, world, backwards, flat, resident);
      };
      const Traffic stage0 = at(0);
      EXPECT_EQ(stage0.reduced, flat);
      EXPECT_EQ(stage0.gathered, flat);
      EXPECT_EQ(stage0.reduced_bytes, 2 * flat);  // bf16
      const Traffic stage1 = at(1);
      EXPECT_EQ(stage1.reduced, flat);
      EXPECT_EQ(stage1.gathered, flat);
      const Traffic stage2 = at(2);
      EXPECT_EQ(stage2.reduced, backwards * flat);
      EXPECT_EQ(stage2.gathered, flat);
      const Traffic stage3 = at(3);
      EXPECT_EQ(stage3.reduced, backwards * flat);
      // Resident units are gathered once, after the step; the others for forward and backward.
      EXPECT_EQ(stage3.gathered, 2 * backwards * (flat - resident) + resident);
    }
  }
}

TEST(Traffic, UnitsThatAreUsedAgainSoonAreNotGatheredTwice) {
  run_ranks(2, [](comm::Group& group) {
    engine::Options options = options_for(3, DType::fp32);
    options.shard.max_reuse_bytes = 1 << 30;
    SmallModel model(kWidth, kBlocks, kClasses);
    Engine engine(model, options, {.group = &group});
    for (std::uint64_t step = 0; step < 2; ++step) {
      group.reset_counters();
      plain_micro(engine, model, step);
      engine.step();
    }
    std::int64_t flat = 0;
    for (const shard::UnitSpec& unit : engine.inside().sharded().plan().units) {
      flat += unit.layout.padded_elems();
    }
    EXPECT_EQ(group.counters()[OpKind::all_gather].elems, flat + 2 * 2);
  });
}

TEST(Limits, PrefetchNeverHoldsMoreThanItsBytes) {
  run_ranks(2, [](comm::Group& group) {
    engine::Options options = options_for(3, DType::fp32);
    SmallModel probe(kWidth, 1, kClasses);
    const std::int64_t block_bytes = 4 * 1024 * 4;  // more than one block, less than three
    options.shard.prefetch_bytes = block_bytes;
    SmallModel model(kWidth, kEqualBlocks, kClasses);
    Engine engine(model, options, {.group = &group});
    const store::MemoryUse rest = engine.ledger().now();
    std::int64_t largest = 0;
    for (const shard::UnitSpec& unit : engine.inside().sharded().plan().units) {
      if (!unit.resident) largest = std::max(largest, unit.whole_bytes());
    }
    for (std::uint64_t step = 0; step < 3; ++step) {
      engine.ledger().reset_peak();
      plain_micro(engine, model, step);
      EXPECT_LE(engine.ledger().peak()[MemoryKind::parameters],
                rest[MemoryKind::parameters] + largest + block_bytes);
      engine.step();
    }
    EXPECT_EQ(engine.inside().sharded().trace().surprises(), 0);
  });
}

// Units are kept for backward as long as there is room; one that is needed takes the place of the
// one that is needed last.
TEST(Limits, KeptUnitsMakeRoomForNeededOnes) {
  run_ranks(2, [](comm::Group& group) {
    engine::Options options = options_for(3, DType::fp32);
    options.shard.max_reuse_bytes = 1 << 30;
    SmallModel model(kWidth, kEqualBlocks, kClasses);
    const std::int64_t block_bytes = [&] {
      Engine probe(model, options, {.group = &group});
      for (const shard::UnitSpec& unit : probe.inside().sharded().plan().units) {
        if (unit.name == "block0") return unit.whole_bytes();
      }
      return std::int64_t{0};
    }();
    ASSERT_GT(block_bytes, 0);
    for (const int room : {2, 5}) {
      options.shard.max_live_bytes = room * block_bytes + block_bytes / 2;
      SmallModel limited(kWidth, kEqualBlocks, kClasses);
      Engine engine(limited, options, {.group = &group});
      const std::int64_t rest = engine.ledger().now()[MemoryKind::parameters];
      std::ptrdiff_t gathered = 0;
      for (std::uint64_t step = 0; step < 4; ++step) {  // the order is known by the third
        profile::Reader reader(group.recorder(), {profile::Kind::gather});
        engine.ledger().reset_peak();
        plain_micro(engine, limited, step);
        const std::int64_t peak = engine.ledger().peak()[MemoryKind::parameters];
        EXPECT_LE(peak - rest, options.shard.max_live_bytes) << room;
        engine.step();
        const std::vector<profile::Record> records = reader.take();
        gathered = std::ranges::count_if(records, [](const profile::Record& record) {
          return record.name == "all_gather" && record.unit.starts_with("block");
        });
      }
      EXPECT_EQ(gathered, 2 * kEqualBlocks - room);
    }
  });
}

}  // namespace
}  // namespace capstan::test
