// What an engine records of a step, and what its log lines make of it.
#include <map>
#include <regex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/engine/comms_log.h"
#include "capstan/engine/phase_clock.h"
#include "capstan/engine/throughput.h"
#include "capstan/shard/torch_dtype.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/temp_folder.h"

namespace capstan::engine {
namespace {

using profile::Kind;
using profile::Kinds;
using profile::Record;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Lines final : public Logger {
 public:
  void log(LogLevel, std::string_view text) override { all += std::string(text) + "\n"; }
  std::string all;
};

void train_step(Engine& engine, test::SmallModel& model, std::uint64_t seed) {
  const auto batch = test::make_batch(4, test::kWidth, test::kClasses, seed);
  const DType dtype = engine.options().precision.params;
  engine.backward(test::loss_of(model, batch, shard::torch_dtype(dtype)));
  engine.step();
}

// The spans of a second step.
std::vector<Record> record_step(comm::Group& group, const Options& options) {
  test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
  Engine engine(model, options, {.group = &group});
  train_step(engine, model, 1);
  profile::Reader reader(group.recorder(), Kinds::all());
  engine.clear_gradients();
  train_step(engine, model, 2);  // the first forward began before anybody read
  (void)reader.take();
  train_step(engine, model, 3);
  group.recorder()->settle();
  return reader.take();
}

using Totals = std::map<std::string, std::pair<int, std::int64_t>>;  // calls and bytes

Totals by_unit(const std::vector<Record>& records, Kind kind, std::string_view name) {
  Totals totals;
  for (const Record& record : records) {
    if (record.kind != kind || record.name != name || record.unit == "gradient norm") continue;
    auto& [calls, bytes] = totals[record.unit];
    ++calls;
    bytes += record.bytes;
  }
  return totals;
}

// So many calls of each unit, with so many bytes for each element of the layout.
Totals of_units(const shard::Plan& plan, int calls, int calls_of_resident, int elem_bytes) {
  Totals totals;
  for (const shard::UnitSpec& unit : plan.units) {
    const int count = unit.resident ? calls_of_resident : calls;
    totals[unit.name] = {count, count * elem_bytes * unit.layout.padded_elems()};
  }
  return totals;
}

TEST(Spans, OfAStepAtStage3AreItsPhasesAndEveryUnitsGathersReductionAndUpdate) {
  run_ranks(2, [](comm::Group& group) {
    Options options = test::fp32_options(3);
    options.shard.persistence_threshold_elems = 0;
    test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
    const shard::Plan plan = Engine(model, options, {.group = &group}).inside().sharded().plan();
    const std::vector<Record> records = record_step(group, options);

    std::vector<std::string> phases;
    for (const Record& record : records) {
      if (record.kind == Kind::phase) phases.emplace_back(record.name);
    }
    EXPECT_THAT(phases, ElementsAre("forward", "backward", "step"));
    // For forward and for backward; after the step what stays whole.
    const Totals gathers = of_units(plan, 2, 1, 4);
    const Totals reductions = of_units(plan, 1, 1, 4);
    EXPECT_EQ(by_unit(records, Kind::gather, "all_gather"), gathers);
    EXPECT_EQ(by_unit(records, Kind::reduce, "reduce_scatter"), reductions);
    EXPECT_EQ(by_unit(records, Kind::wait, "all_gather"), gathers);
    EXPECT_EQ(by_unit(records, Kind::wait, "reduce_scatter"), reductions);
    // Our half of a master and two moments.
    EXPECT_EQ(by_unit(records, Kind::update, "update"), of_units(plan, 1, 1, 3 * 4 / 2));
    for (const Record& record : records) {
      EXPECT_LE(record.host_begin, record.host_end);
      EXPECT_EQ(record.device.begin, record.host_begin) << "on the CPU they are the same";
      EXPECT_EQ(record.device.length, record.host_end - record.host_begin);
    }
  });
}

TEST(Spans, OfOffloadedStateAreCopiesAndOfStateOnDisksReadsAndWrites) {
  const test::TempFolder folder;
  run_ranks(1, [&](comm::Group& group) {
    Options options = test::fp32_options(2);
    options.precision.params = DType::bf16;
    options.store.optimizer.placement = store::Placement::host;
    const std::vector<Record> on_host = record_step(group, options);
    std::int64_t grads = 0;
    for (const auto& [unit, total] : by_unit(on_host, Kind::copy, "to host")) {
      EXPECT_NE(unit, "");
      grads += total.second;
    }
    std::int64_t values = 0;
    for (const auto& [unit, total] : by_unit(on_host, Kind::copy, "to device")) {
      EXPECT_NE(unit, "");
      values += total.second;
    }
    EXPECT_GT(values, 0);
    EXPECT_EQ(grads, values);  // both bf16

    options.store.optimizer.placement = store::Placement::nvme;
    options.store.optimizer.nvme_paths = {folder.path().string()};
    const std::vector<Record> on_disk = record_step(group, options);
    const Totals reads = by_unit(on_disk, Kind::io, "read");
    ASSERT_EQ(reads.size(), 1U);
    EXPECT_GT(reads.begin()->second.second, 0);
    // Those of the step before are seen to end at the start of this one.
    EXPECT_EQ(by_unit(on_disk, Kind::io, "write"), reads);
  });
}

TEST(Spans, AreNotRecordedWhereNobodyAsksOrNobodyHears) {
  run_ranks(2, [](comm::Group& group) {
    const auto records = [&](const Options& options) {
      test::SmallModel model(test::kWidth, 1, test::kClasses);
      Lines log;
      const Engine engine(model, options, {.group = &group, .logger = &log});
      return group.recorder()->records(Kind::phase) || group.recorder()->records(Kind::gather);
    };
    Options options = test::fp32_options(3);
    EXPECT_FALSE(records(options));
    options.profile.wall_clock_breakdown = true;
    options.profile.comms.enabled = true;
    EXPECT_EQ(records(options), group.rank() == 0);
    options.log_level = LogLevel::warning;
    EXPECT_FALSE(records(options));
  });
}

TEST(Spans, OfTwoEnginesOverOneGroupAreNotMistakenForEachOthers) {
  run_ranks(1, [](comm::Group& group) {
    Options options = test::fp32_options(1);
    options.profile.steps_per_print = 1;
    Lines first_log;
    Lines second_log;
    test::SmallModel first_model(test::kWidth, 1, test::kClasses);
    test::SmallModel second_model(test::kWidth, 1, test::kClasses);
    Engine first(first_model, options, {.group = &group, .logger = &first_log});
    Engine second(second_model, options, {.group = &group, .logger = &second_log});
    for (std::uint64_t step = 0; step < 2; ++step) {
      train_step(first, first_model, step);
      train_step(second, second_model, step);
    }
    train_step(second, second_model, 3);
    // Two steps warm up.
    EXPECT_THAT(first_log.all, Not(HasSubstr("SamplesPerSec")));
    EXPECT_THAT(second_log.all, HasSubstr("global_step=3, RunningAvgSamplesPerSec"));
  });
}

Record record_of(std::string_view name, Kind kind, milliseconds time, std::int64_t bytes = 0) {
  Record record{.name = name, .kind = kind, .bytes = bytes};
  record.device.length = time;
  record.host_end = record.host_begin + std::chrono::hours(1);  // of no interest to anybody
  return record;
}

TEST(PhaseTimes, TellTheDevicesTimeAndWhatBackwardWaitedForItsReductions) {
  PhaseTimes times;
  times.add(record_of("reduce_scatter", Kind::wait, milliseconds(9)));  // in forward
  times.add(record_of("forward", Kind::phase, milliseconds(10)));
  times.add(record_of("reduce_scatter", Kind::wait, milliseconds(2)));
  times.add(record_of("all_gather", Kind::wait, milliseconds(7)));
  times.add(record_of("reduce_scatter", Kind::reduce, milliseconds(30)));
  times.add(record_of("reduce_scatter", Kind::wait, milliseconds(3)));
  times.add(record_of("backward", Kind::phase, milliseconds(20)));
  times.add(record_of("forward", Kind::phase, milliseconds(10)));
  times.add(record_of("step", Kind::phase, milliseconds(4)));
  EXPECT_EQ(times.take_line(),
            "time (ms) | fwd: 20.00 | bwd: 20.00 | bwd_inner: 15.00 | bwd_allreduce: 5.00 | step: "
            "4.00");
  EXPECT_EQ(times.of(Phase::backward).count(), 0);
}

TEST(Throughput, CountsTheDevicesTimeOfAllPhasesButThoseOfTheFirstTwoSteps) {
  Throughput throughput;
  const auto step = [&](milliseconds forward, std::int64_t samples = 8) {
    throughput.add(record_of("forward", Kind::phase, forward));
    throughput.add(record_of("all_gather", Kind::gather, milliseconds(500)));
    throughput.add(record_of("backward", Kind::phase, milliseconds(6)));
    throughput.add(record_of("step", Kind::phase, milliseconds(4)));
    throughput.step_ended(samples);
  };
  step(milliseconds(100));
  step(milliseconds(100));
  EXPECT_FALSE(throughput.current().has_value());
  EXPECT_FALSE(throughput.running_average().has_value());
  step(milliseconds(10));
  EXPECT_DOUBLE_EQ(throughput.current().value(), 8 / 0.020);
  step(milliseconds(30));
  EXPECT_DOUBLE_EQ(throughput.current().value(), 8 / 0.040);
  EXPECT_DOUBLE_EQ(throughput.running_average().value(), 16 / 0.060);
  step(milliseconds(30), 18);
  EXPECT_DOUBLE_EQ(throughput.current().value(), 18 / 0.040);
  EXPECT_DOUBLE_EQ(throughput.running_average().value(), 30 / 0.100);
}

TEST(CommsLog, AddsUpOperationsByKindSinceTheLastTable) {
  CommsLog log({.enabled = true});
  EXPECT_TRUE(log.add(record_of("all_gather", Kind::gather, milliseconds(2), 1024)));
  EXPECT_TRUE(log.add(record_of("reduce_scatter", Kind::reduce, milliseconds(1), 2'000'000)));
  EXPECT_TRUE(log.add(record_of("all_gather", Kind::gather, milliseconds(2), 3072)));
  EXPECT_FALSE(log.add(record_of("all_gather", Kind::wait, milliseconds(50), 3072)));
  EXPECT_FALSE(log.add(record_of("step", Kind::phase, milliseconds(50))));
  EXPECT_EQ(log.take_table(),
            "communication since the last report:\n"
            "  all_gather             2 calls        4 KiB       4.00 ms     0.00 GB/s\n"
            "  reduce_scatter         1 calls     1.91 MiB       1.00 ms     2.00 GB/s");
  EXPECT_EQ(log.take_table(), "communication since the last report:");
}

TEST(CommsLog, ListsOperationsThatWereAskedFor) {
  CommsLog log({.enabled = true, .all_ops = false, .ops = {"broadcast"}});
  CommsLog debug({.enabled = true, .debug = true});
  Record record = record_of("broadcast", Kind::gather, milliseconds(2), 4096);
  record.detail = "broadcast of 1024 fp32 from rank 0";
  record.unit = "initial values";
  EXPECT_FALSE(log.add(record_of("all_gather", Kind::gather, milliseconds(2), 1024)));
  EXPECT_TRUE(log.add(record));
  EXPECT_EQ(log.line(record), "broadcast of 1024 fp32 from rank 0: 4 KiB in 2.000 ms, 0.00 GB/s");
  EXPECT_EQ(debug.line(record),
            "broadcast of 1024 fp32 from rank 0 (initial values): 4 KiB in 2.000 ms, 0.00 GB/s");
}

}  // namespace
}  // namespace capstan::engine
