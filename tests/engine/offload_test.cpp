// Placement is not another engine: with states, gradients or parameters in host memory every number
// stays what it was, and both ledgers say what lives where.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include <malloc.h>
#include <unistd.h>

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/engine/settings.h"
#include "capstan/shard/homes.h"
#include "capstan/shard/memory.h"
#include "capstan/shard/torch_dtype.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/foreign_backend.h"
#include "tests/support/sanitized.h"

namespace capstan::engine {
namespace {

using store::MemoryKind;
using store::Placement;
using test::Trained;

struct Case {
  int stage = 2;
  DType dtype = DType::bf16;
  int world = 1;
  int backwards = 1;
  double clip = 0;
  optim::Kind kind = optim::Kind::adamw;
  int scale_power = 8;
};

Options options_of(const Case& run) {
  Options options = test::fp32_options(run.stage);
  options.batch.accumulation_steps = run.backwards;
  options.gradient_clipping = run.clip;
  options.optimizer->kind = run.kind;
  options.optimizer->hyper.weight_decay = 0.01;
  options.precision.params = run.dtype;
  options.precision.loss_scale.initial_scale_power = run.scale_power;
  options.precision.loss_scale.hysteresis = 1;
  return options;
}

Trained train(const Case& run, const Options& options) {
  const auto micro = [&](Engine& engine, test::SmallModel& model, std::uint64_t seed) {
    const auto batch = test::make_batch(4, test::kWidth, test::kClasses, seed);
    engine.backward(test::loss_of(model, batch, shard::torch_dtype(run.dtype)));
  };
  return test::train(run.world, options, micro);
}

void expect_same(const Trained& a, const Trained& b, const std::string& what) {
  EXPECT_TRUE(test::all_equal(a.params, b.params)) << what;
  ASSERT_EQ(a.reports.size(), b.reports.size()) << what;
  for (std::size_t i = 0; i < a.reports.size(); ++i) {
    EXPECT_EQ(a.reports[i].applied, b.reports[i].applied) << what;
    if (!a.reports[i].applied) continue;  // the norm is no number then
    EXPECT_EQ(a.reports[i].grad_norm, b.reports[i].grad_norm) << what;
  }
}

using store::EarlyUpdates;

// How an offloaded update is spread in time.
struct Overlap {
  bool late = false;
  EarlyUpdates early = EarlyUpdates::never;
};
constexpr Overlap kNone{};
constexpr Overlap kBoth{.late = true, .early = EarlyUpdates::always};

// The optimizer on the host in whole and in part; at stage 3 also the parameters, with the
// optimizer on either side.
void expect_offload_changes_nothing(const Case& run,
                                    const std::vector<Overlap>& overlaps = {kNone, kBoth}) {
  const std::string where =
      fmt::format("stage {} {} world {} backwards {} clip {} {}", run.stage, name(run.dtype),
                  run.world, run.backwards, run.clip, optim::name(run.kind));
  const Trained reference = train(run, options_of(run));
  for (const double ratio : {1.0, 0.4}) {
    Options options = options_of(run);
    options.store.optimizer.placement = Placement::host;
    options.store.optimizer.ratio = ratio;
    for (const Overlap& overlap : overlaps) {
      options.store.params.placement = Placement::device;
      options.store.optimizer.late_updates = overlap.late;
      options.store.optimizer.early_updates = overlap.early;
      const std::string how =
          fmt::format("{}, ratio {}{}{}", where, ratio, overlap.late ? ", late" : "",
                      overlap.early == EarlyUpdates::always ? ", early" : "");
      expect_same(reference, train(run, options), how);
      if (run.stage < 3) continue;
      options.store.params.placement = Placement::host;
      expect_same(reference, train(run, options), how + ", both");
    }
  }
  if (run.stage < 3) return;
  Options options = options_of(run);
  options.store.params.placement = Placement::host;
  expect_same(reference, train(run, options), where + ", parameters only");
}

TEST(Offload, GivesTheSameBitsAtEveryStageAndWorld) {
  for (const int stage : {1, 2, 3}) {
    for (const int world : {1, 2, 3, 4}) {
      expect_offload_changes_nothing(
          {.stage = stage, .world = world, .clip = 0.05},
          {kNone, {.late = true}, {.early = EarlyUpdates::always}, kBoth});
    }
  }
}

TEST(Offload, GivesTheSameBitsInEveryPrecisionWithAndWithoutAccumulation) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const int backwards : {1, 3}) {
      for (const int world : {1, 2}) {
        for (const int stage : {2, 3}) {
          expect_offload_changes_nothing(
              {.stage = stage, .dtype = dtype, .world = world, .backwards = backwards});
        }
      }
    }
  }
}

TEST(Offload, GivesTheSameBitsForEveryOptimizer) {
  using optim::Kind;
  for (const Kind kind : {Kind::adam, Kind::sgd, Kind::lion, Kind::adagrad, Kind::lamb}) {
    expect_offload_changes_nothing({.stage = 3, .world = 2, .clip = 0.05, .kind = kind});
  }
}

TEST(Offload, SkipsTheSameOverflowingSteps) {
  const Case run{.stage = 2, .dtype = DType::fp16, .world = 2, .scale_power = 24};
  const Trained reference = train(run, options_of(run));
  EXPECT_FALSE(reference.reports.front().applied);
  expect_offload_changes_nothing(run);
}

constexpr std::int64_t kDeviceBytes[] = {0, 6'000, 12'000, 18'000, 24'000, 1 << 30};

TEST(Offload, GivesTheSameBitsWhateverTheDeviceHolds) {
  for (const int stage : {2, 3}) {
    const Case run{.stage = stage, .world = 2, .clip = 0.05};
    const Trained reference = train(run, options_of(run));
    Options options = options_of(run);
    options.store.optimizer.placement = Placement::host;
    options.store.optimizer.auto_ratio = true;
    options.store.params.placement = stage == 3 ? Placement::host : Placement::device;
    options.store.activation_bytes = 1000;
    for (const std::int64_t bytes : kDeviceBytes) {
      options.store.device_bytes = bytes + options.store.activation_bytes;
      expect_same(reference, train(run, options), fmt::format("stage {}, {} bytes", stage, bytes));
    }
  }
}

// The device is filled first; what it cannot hold goes to the host, states before parameters.
TEST(Offload, SpillsOnlyWhatTheDeviceCannotHold) {
  run_ranks(1, [](comm::Group& group) {
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    Options options = options_of({.stage = 3});
    options.store.optimizer.placement = Placement::host;
    options.store.params.placement = Placement::host;
    Engine engine(model, options, {.group = &group});
    const shard::Plan& plan = engine.inside().sharded().plan();
    const auto states_on_host = [&plan](const shard::Settings& settings) {
      return std::ranges::count(shard::choose_homes(plan, settings.policy, settings.host.homes),
                                Placement::host, &shard::UnitHomes::states);
    };
    const auto params_on_host = [&plan](const shard::Settings& settings) {
      return std::ranges::count(shard::choose_homes(plan, settings.policy, settings.host.homes),
                                Placement::host, &shard::UnitHomes::params);
    };
    const shard::Settings all = engine.inside().sharded().settings();
    shard::Settings none = all;
    none.host.homes.optimizer.share = none.host.homes.params.share = 0;
    const std::int64_t least = shard::device_need(plan, all);
    const std::int64_t most = shard::device_need(plan, none);
    const auto all_states = states_on_host(all);
    bool partly = false;
    auto last_states = all_states;
    auto last_params = params_on_host(all);
    for (int tenths = 0; tenths <= 10; ++tenths) {
      const std::int64_t bytes = least + (most - least) * tenths / 10;
      shard::Settings settings = all;
      shard::spill(plan, bytes, settings);
      const auto states = states_on_host(settings);
      const auto params = params_on_host(settings);
      EXPECT_LE(shard::device_need(plan, settings), bytes) << tenths;
      EXPECT_LE(states, last_states) << tenths;
      EXPECT_LE(params, last_params) << tenths;
      EXPECT_TRUE(params == 0 || states == all_states) << tenths;
      partly = partly || (states > 0 && states < all_states);
      last_states = states;
      last_params = params;
    }
    EXPECT_TRUE(partly);
    EXPECT_EQ(last_states, 0);
    EXPECT_EQ(last_params, 0);
  });
}

// While a unit is taken over, the values that the model came with are gone from those before it.
TEST(Offload, StartsWithoutHoldingTheModelTwice) {
  run_ranks(2, [](comm::Group& group) {
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> originals;
    for (const at::Tensor& param : model->parameters()) {
      originals.emplace_back(param.storage().getWeakStorageImpl());
    }
    const auto alive = [&originals] {
      return std::count_if(originals.begin(), originals.end(),
                           [](const auto& storage) { return !storage.expired(); });
    };
    const auto all = static_cast<std::ptrdiff_t>(originals.size());
    std::ptrdiff_t taken = 0;  // parameters whose values the ranks have exchanged
    std::ptrdiff_t most_twice = 0;
    const auto backend = c10::make_intrusive<test::ForeignBackend>(
        c10::intrusive_ptr<c10d::Backend>::reclaim_copy(&group.backend()));
    backend->on_broadcast = [&] {
      most_twice = std::max(most_twice, alive() - (all - taken));
      ++taken;
    };
    comm::Group watched(backend);
    Options options = options_of({.stage = 3, .world = 2});
    options.store.optimizer.placement = Placement::host;
    options.store.params.placement = Placement::host;
    Engine engine(model, options, {.group = &watched});
    backend->on_broadcast = nullptr;
    std::size_t largest = 0;
    for (const shard::UnitSpec& unit : engine.inside().sharded().plan().units) {
      largest = std::max(largest, unit.params.size());
    }
    EXPECT_EQ(taken, all);
    EXPECT_EQ(alive(), 0);
    EXPECT_LT(most_twice, static_cast<std::ptrdiff_t>(largest));
  });
}

// On the host: what the layout says, at the device: no state at all.
TEST(Offload, KeepsStatesAndGradientsOnTheHost) {
  for (const int world : {1, 2}) {
    run_ranks(world, [&](comm::Group& group) {
      test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
      test::fill(*model, 11);
      Options options = options_of({.stage = 3, .world = world});
      options.store.optimizer.placement = Placement::host;
      options.store.params.placement = Placement::host;
      Engine engine(model, options, {.group = &group});
      shard::ShardedModel& sharded = engine.inside().sharded();
      std::int64_t owned = 0;
      std::int64_t released = 0;
      for (const int unit : sharded.step_order()) {
        const shard::UnitSpec& spec = sharded.plan().units[static_cast<std::size_t>(unit)];
        owned += spec.layout.shard_elems();
        if (!spec.resident) released += spec.layout.shard_elems();
      }
      EXPECT_EQ(sharded.places().device_ledger().now()[MemoryKind::optimizer], 0);
      EXPECT_EQ(sharded.places().host_ledger().now()[MemoryKind::optimizer], 12 * owned);
      EXPECT_EQ(sharded.places().host_ledger().now()[MemoryKind::parameters], 2 * released);
      const auto batch = test::make_batch(4, test::kWidth, test::kClasses, 5);
      engine.backward(test::loss_of(model, batch, at::kBFloat16));
      sharded.finish_gradients();
      EXPECT_EQ(sharded.places().device_ledger().now()[MemoryKind::gradients], 0);
      EXPECT_EQ(sharded.places().host_ledger().now()[MemoryKind::gradients],
                (world == 1 ? 2 : 4) * owned);
      engine.step();
    });
  }
}

// The forecast, the ledger and the machine agree on what a run takes from the host.
TEST(Offload, TakesFromTheHostWhatIsForecastAndLedgered) {
  if (!kMeasuresMemory) GTEST_SKIP() << "the address sanitizer keeps freed memory";
  constexpr int kWide = 1024;
  const auto resident_bytes = [] {
    ::malloc_trim(0);  // what was freed is the machine's again
    std::ifstream file("/proc/self/statm");
    std::int64_t all = 0;
    std::int64_t resident = 0;
    file >> all >> resident;
    return resident * ::sysconf(_SC_PAGESIZE);
  };
  for (const int world : {1, 2}) {
    const std::int64_t before = resident_bytes();
    std::mutex mutex;
    std::int64_t ledgered = 0;  // of all ranks
    std::int64_t used = 0;
    run_ranks(world, [&](comm::Group& group) {
      test::SmallModel model(kWide, test::kBlocks, test::kClasses);
      Options options = options_of({.stage = 3, .world = world});
      options.store.optimizer.placement = Placement::host;
      options.store.params.placement = Placement::host;
      Engine engine(model, options, {.group = &group});
      shard::ShardedModel& sharded = engine.inside().sharded();
      for (std::uint64_t step = 0; step < 2; ++step) {
        const auto batch = test::make_batch(4, kWide, test::kClasses, step);
        engine.backward(test::loss_of(model, batch, at::kBFloat16));
        sharded.finish_gradients();
        group.barrier().wait();
        const store::MemoryUse host = sharded.places().host_ledger().now();
        EXPECT_EQ(host, shard::host_forecast(sharded.plan(), sharded.settings())) << to_text(host);
        if (step == 1) {
          const std::lock_guard lock(mutex);
          ledgered += host.total() + sharded.places().device_ledger().now().total() +
                      sharded.places().device().idle_bytes();
          used = resident_bytes() - before;
        }
        group.barrier().wait();
        engine.step();
      }
    });
    EXPECT_GT(used, ledgered * 9 / 10) << world;
    EXPECT_LT(used, ledgered * 5 / 4) << world;
  }
}

TEST(Offload, SaysBeforeItStartsThatTheHostHasTooLittleMemory) {
  run_ranks(1, [](comm::Group& group) {
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    Options options = options_of({.stage = 3});
    options.store.optimizer.placement = Placement::host;
    Engine engine(model, options, {.group = &group});
    const shard::Plan& plan = engine.inside().sharded().plan();
    const shard::Settings& settings = engine.inside().sharded().settings();
    const std::int64_t need = shard::host_forecast(plan, settings).total();
    EXPECT_EQ(need,
              engine.ledger(store::Placement::host).now().total() / 12 * 14);  // + the gradients
    EXPECT_THAT(engine.describe(), testing::HasSubstr("host memory  "));
    const store::MemoryUse mine = shard::host_forecast(plan, settings);
    EXPECT_NO_THROW(check_host_memory(mine, settings, {need, 1, need}));
    try {
      check_host_memory(mine, settings, {need, 2, 2 * need});
      FAIL() << "half of the memory is enough";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("\"ratio\": 0.49 would fit"));
    }
  });
}

TEST(Offload, AllRanksOfAMachineShareItsMemory) {
  run_ranks(3, [](comm::Group& group) {
    // Stages of a pipeline need different amounts.
    const auto room = host_room(group, c10::kCPU, 1000 + group.rank());
    ASSERT_TRUE(room.has_value());
    EXPECT_EQ(room->ranks, 3);
    EXPECT_EQ(room->need_bytes, 3003);
    EXPECT_GT(room->available_bytes, 0);
  });
}

TEST(Offload, ReadsAndWritesByNameAsEverywhere) {
  run_ranks(2, [](comm::Group& group) {
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    test::fill(*model, 11);
    Options options = options_of({.stage = 3, .dtype = DType::fp32, .world = 2});
    options.store.optimizer.placement = Placement::host;
    options.store.params.placement = Placement::host;
    Engine engine(model, options, {.group = &group});
    const at::Tensor value = at::full({2 * test::kWidth + 1, test::kWidth}, 0.25);
    engine.set_parameter("block1.up.weight", value);
    EXPECT_TRUE(engine.master("block1.up.weight").equal(value));
    EXPECT_TRUE(engine.parameter("block1.up.weight").equal(value));
    engine.set_state("block1.up.weight", "exp_avg", value);
    EXPECT_TRUE(engine.state("block1.up.weight", "exp_avg").equal(value));
  });
}

// The error of an update on its own thread reaches whoever uses the unit next, and again after it.
// What draw_timeline.py draws as the CPU's row.
TEST(Offload, ShowsTheUpdatesOfTheHostInAProfile) {
  static std::atomic<int> seen;
  seen = 0;
  const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& scope) {
                              if (std::string_view(scope.name()) == "capstan::host_update") ++seen;
                              return std::unique_ptr<at::ObserverContext>();
                            }).scopes({at::RecordScope::USER_SCOPE}));
  train({}, options_of({}));
  EXPECT_EQ(seen, 0);
  Options options = options_of({});
  options.store.optimizer.placement = Placement::host;
  train({}, options);
  at::removeCallback(handle);
  EXPECT_GT(seen, 0);
}

TEST(Offload, IsRefusedWhereTheStageHasNoShardsToPlace) {
  const auto message = [](int stage, bool params) -> std::string {
    Options options = test::fp32_options(stage);
    (params ? options.store.params.placement : options.store.optimizer.placement) = Placement::host;
    try {
      test::train(1, options, test::plain_micro);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(0, false), testing::HasSubstr("stages 1 to 3"));
  EXPECT_THAT(message(2, true), testing::HasSubstr("stage 3 only"));
}

}  // namespace
}  // namespace capstan::engine
