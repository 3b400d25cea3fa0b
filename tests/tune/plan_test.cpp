#include "capstan/tune/plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/config/resolve.h"
#include "capstan/json/writer.h"
#include "capstan/models/registry.h"
#include "capstan/tune/table.h"

namespace capstan::tune {
namespace {

using store::Placement;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kGiB = 1024.0 * 1024 * 1024;

Workload work_on(const std::shared_ptr<const models::Blueprint>& model, int ranks) {
  Workload work{.model = model->with({.dropout = 0.0}), .tokens = model->sizes().context};
  work.ranks = ranks;
  work.options.optimizer = optim::Options{};
  work.options.precision.params = DType::bf16;
  return work;
}

Workload work_on(const std::string& name, int ranks) {
  return work_on(models::blueprint_by_name(name), ranks);
}

Machine small_gpus(double gib, double host_gib) {
  Machine machine = find_machine("rtx3090");
  machine.device_bytes = static_cast<std::int64_t>(gib * kGiB);
  machine.host_bytes = static_cast<std::int64_t>(host_gib * kGiB);
  return machine;
}

// docs/performance.md: our C++ GPT-2 on one H200, as libtorch's allocator and the host saw it, and
// the speed. None of these figures went into the estimate of memory; the first row's time did into
// that of element-wise operations.
struct Published {
  std::string model;
  int stage;
  bool optimizer;
  bool params;
  std::int64_t samples;
  bool recompute;
  double gib;
  double tflops;
};

TEST(Estimate, IsNearWhatAnH200Held) {
  for (const Published& seen : std::vector<Published>{
           {"gpt2-xl", 0, false, false, 16, false, 67.4, 498},
           {"gpt2-xl", 3, false, false, 16, false, 67.4, 497},
           {"gpt2-xl", 2, true, false, 16, false, 51.3, 283},
           {"gpt2-xl", 3, true, true, 16, false, 49.1, 292},
           {"gpt2-xl", 2, false, false, 32, true, 43.8, 400},
           {"gpt2-xl", 2, true, false, 32, true, 26.3, 331},
       }) {
    Workload work = work_on(seen.model, 1);
    engine::Options& options = work.options;
    options.shard.stage = seen.stage;
    options.batch.micro_samples = seen.samples;
    options.recompute.enabled = seen.recompute;
    options.store.optimizer.late_updates = true;
    if (seen.optimizer) options.store.optimizer.placement = Placement::host;
    if (seen.params) options.store.params.placement = Placement::host;
    Machine h200 = find_machine("h200");
    h200.devices_per_host = 1;
    h200.host_update_rate = 5.0e9;  // of those 16 cores
    const Candidate said = weigh(work, h200);
    const double gib = static_cast<double>(said.memory.peak()) / kGiB;
    const double tflops = model_flops_per_second(work, said.time) / 1e12;
    fmt::print(
        "{:<60} {:6.1f} GiB, was {:5.1f} ({:+.1f} %)  {:4.0f} TFLOP/s, was {:4.0f} ({:+.1f} %)\n",
        said.title, gib, seen.gib, 100 * (gib / seen.gib - 1), tflops, seen.tflops,
        100 * (tflops / seen.tflops - 1));
    EXPECT_NEAR(gib / seen.gib, 1, 0.05) << said.title;
    EXPECT_NEAR(tflops / seen.tflops, 1, 0.15) << said.title;
  }
}

TEST(Plan, ClimbsDownTheLadderUntilItFits) {
  const Plan plan = make_plan({.work = work_on("gpt2-xl", 2), .machine = small_gpus(24, 60)});
  ASSERT_TRUE(plan.best.has_value());
  int taken = 0;
  for (const Step& step : plan.ladder) {
    if (taken == 0 && step.verdict == Step::Verdict::passed) {
      EXPECT_FALSE(step.candidate.fits()) << step.title;
      EXPECT_THAT(step.candidate.lacks, HasSubstr("GPU memory"));
    }
    taken += step.verdict == Step::Verdict::taken ? 1 : 0;
  }
  EXPECT_EQ(taken, 1);
  // The ladder is one way among all.
  for (const Step& step : plan.ladder) {
    if (step.verdict != Step::Verdict::taken) continue;
    EXPECT_GE(plan.best->tokens_per_second, step.candidate.tokens_per_second);
  }
}

TEST(Plan, GivesAConfigurationThatIsAccepted) {
  for (const double gib : {24.0, 12.0, 8.0}) {
    const Plan plan = make_plan({.work = work_on("gpt2-xl", 2), .machine = small_gpus(gib, 60)});
    ASSERT_TRUE(plan.best.has_value()) << gib;
    config::Context context;
    context.world_size = 2 / plan.best->work.options.mesh.pipe;
    context.auto_values = {{"optimizer.params.lr", json::Value(1e-4)}};
    const std::string text = json::write(configuration_of(plan.best->work));
    const config::Resolved resolved = config::resolve(json::read_document(text, "plan"), context);
    const engine::Options& planned = plan.best->work.options;
    EXPECT_EQ(resolved.engine.shard.stage, planned.shard.stage) << text;
    EXPECT_EQ(resolved.engine.store.optimizer.placement, planned.store.optimizer.placement);
    EXPECT_EQ(resolved.engine.store.params.placement, planned.store.params.placement);
    EXPECT_EQ(resolved.engine.recompute.enabled, planned.recompute.enabled);
    EXPECT_EQ(resolved.engine.batch.micro_samples, planned.batch.micro_samples);
    EXPECT_EQ(resolved.engine.precision.params, planned.precision.params);
    EXPECT_EQ(resolved.engine.mesh.tensor, planned.mesh.tensor);
  }
}

TEST(Plan, TakesFewerGpusWhereThatIsTheGoal) {
  Question ask{.work = work_on("gpt2-xl", 8), .machine = find_machine("a100")};
  ask.goal = Goal::fewest_gpus;
  const Plan plan = make_plan(ask);
  ASSERT_TRUE(plan.best.has_value());
  EXPECT_EQ(plan.best->work.ranks, 1);
}

TEST(Plan, TakesTheLargestBatchWhereThatIsTheGoal) {
  Question ask{.work = work_on("gpt2-large", 1), .machine = small_gpus(24, 120)};
  const Plan fastest = make_plan(ask);
  ask.goal = Goal::largest_batch;
  const Plan largest = make_plan(ask);
  ASSERT_TRUE(fastest.best && largest.best);
  EXPECT_GE(largest.best->work.options.batch.micro_samples,
            fastest.best->work.options.batch.micro_samples);
  for (const Candidate& each : largest.ranking) {
    EXPECT_LE(each.work.options.batch.micro_samples,
              largest.best->work.options.batch.micro_samples);
  }
}

TEST(Plan, SaysWhatIsMissingWhereNothingFits) {
  const Plan plan = make_plan({.work = work_on("gpt2-xl", 1), .machine = small_gpus(1, 4)});
  EXPECT_FALSE(plan.best.has_value());
  ASSERT_TRUE(plan.smallest.has_value());
  EXPECT_THAT(plan.smallest->lacks, HasSubstr("needs"));
}

TEST(Plan, KeepsTheSamplesOfAStep) {
  Workload work = work_on("gpt2", 2);
  work.options.batch.train_samples = 24;
  for (const Candidate& each : make_plan({.work = work, .machine = small_gpus(24, 60)}).ranking) {
    EXPECT_EQ(each.work.options.batch.train_samples, 24) << each.title;
  }
}

TEST(StepTime, HidesTrafficOnlyBehindComputation) {
  Workload work = work_on("gpt2", 4);
  const Machine machine = find_machine("a100");
  work.options.shard.stage = 3;
  const StepTime hidden = step_time(work, machine);
  work.options.shard.overlap_comm = false;
  const StepTime open = step_time(work, machine);
  EXPECT_LT(hidden.total(), open.total());
  EXPECT_EQ(hidden.compute, open.compute);
}

TEST(StepTime, OfAPipelineFallsWithMoreMicroBatches) {
  Workload work = work_on("gpt2", 4);
  work.options.mesh.pipe = 4;
  double before = 0;
  for (const std::int64_t count : {4, 8, 32}) {
    work.options.batch.accumulation_steps = count;
    const StepTime time = step_time(work, find_machine("a100"));
    EXPECT_GT(time.bubble.count(), 0);
    const double rate = tokens_per_second(work, time);
    EXPECT_GT(rate, before);
    before = rate;
  }
}

TEST(Traffic, IsThatOfTheStages) {
  Workload work = work_on("gpt2", 4);
  const auto elems = static_cast<double>(work.model->parameter_count());
  work.options.shard.max_reuse_bytes = 0;
  work.options.batch.accumulation_steps = 3;
  const auto of_stage = [&](int stage) {
    work.options.shard.stage = stage;
    return traffic_of(work);
  };
  EXPECT_DOUBLE_EQ(of_stage(1).gathered, 0.75 * elems * 2);
  EXPECT_DOUBLE_EQ(of_stage(1).reduced, 0.75 * elems * 2);
  EXPECT_DOUBLE_EQ(of_stage(2).reduced, 3 * 0.75 * elems * 2);
  EXPECT_DOUBLE_EQ(of_stage(3).gathered, 6 * 0.75 * elems * 2);
}

TEST(Machines, AreFoundByNameAndFile) {
  for (const std::string& name : machine_names()) {
    const Machine machine = find_machine(name);
    EXPECT_EQ(machine.name, name);
    const std::string text = json::write(to_json(machine));
    EXPECT_EQ(read_machine(json::read_document(text, "file")), machine);
  }
  try {
    (void)find_machine("a1000");
    FAIL() << "it was found";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.info().fix, HasSubstr("did you mean a100"));
  }
}

TEST(Machines, OfDamagedFilesAreRefused) {
  for (const std::string text : {"{}", R"({"name": 3})", R"({"name": "x", "on_gpu": true})"}) {
    EXPECT_THROW((void)read_machine(json::read_document(text, "file")), ConfigError) << text;
  }
}

TEST(AllWays, HaveEveryStageAndPlacementThatCanBe) {
  std::vector<std::string> problems;
  for (const engine::Options& way : all_ways(work_on("gpt2", 2).options)) {
    const bool optimizer = way.store.optimizer.placement != Placement::device;
    const bool params = way.store.params.placement != Placement::device;
    if (optimizer && way.shard.stage < 1) problems.emplace_back("optimizer at stage 0");
    if (params && way.shard.stage < 3) problems.emplace_back("parameters below stage 3");
  }
  EXPECT_THAT(problems, IsEmpty());
}

TEST(Estimate, RefusesWhatCannotBe) {
  Workload work = work_on("gpt2", 3);
  work.options.mesh.pipe = 2;
  EXPECT_THROW((void)estimate_memory(work, {}), ConfigError);
  work.ranks = 64;
  work.options.mesh.pipe = 64;
  EXPECT_THROW((void)estimate_memory(work, {}), ConfigError);  // more stages than blocks
  work.options.mesh.pipe = 1;
  work.options.shard.unit_names = {"transformer.h.99"};
  EXPECT_THROW((void)estimate_memory(work, {}), ConfigError);
}

}  // namespace
}  // namespace capstan::tune
