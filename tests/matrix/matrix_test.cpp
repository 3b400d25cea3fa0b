// The promise of one layout: the same numbers at every stage.
#include <bit>
#include <cstdint>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "capstan/engine/engine.h"
#include "capstan/engine/engine_state.h"
#include "capstan/shard/torch_dtype.h"
#include "tests/engine/small_model.h"
#include "tests/support/run_ranks.h"

namespace capstan::engine {
namespace {

constexpr int kWidth = 12;
constexpr int kBlocks = 3;
constexpr int kClasses = 7;
constexpr int kSteps = 4;

struct Case {
  int stage = 0;
  DType dtype = DType::fp32;
  int world = 1;
  int backwards = 1;
  shard::ReduceSchedule schedule = shard::ReduceSchedule::at_step;
  bool clip = false;
  optim::Kind kind = optim::Kind::adamw;
  std::int64_t reuse_bytes = 0;
};

struct Result {
  std::vector<float> losses;       // of rank 0
  std::vector<at::Tensor> params;  // masters
  std::vector<double> norms;
};

Options options_of(const Case& run) {
  Options options;
  options.batch = {.train_samples = 4L * run.world * run.backwards,
                   .micro_samples = 4,
                   .accumulation_steps = run.backwards};
  options.gradient_clipping = run.clip ? 0.05 : 0;
  options.optimizer = optim::Options{.kind = run.kind,
                                     .hyper = {.lr = 1e-2, .weight_decay = 0.01, .momentum = 0.9}};
  options.precision.params = run.dtype;
  options.precision.loss_scale.initial_scale_power = 8;
  options.shard.stage = run.stage;
  options.shard.reduce_schedule = run.schedule;
  options.shard.persistence_threshold_elems = 13;
  options.shard.max_reuse_bytes = run.reuse_bytes;
  return options;
}

Result train(const Case& run) {
  Result result;
  std::mutex mutex;
  run_ranks(run.world, [&](comm::Group& group) {
    test::SmallModel model(kWidth, kBlocks, kClasses);
    test::fill(*model, 11 + static_cast<std::uint64_t>(group.rank()));  // rank 0's count
    Engine engine(model, options_of(run), {.group = &group});
    std::vector<float> losses;
    std::vector<double> norms;
    for (int step = 0; step < kSteps; ++step) {
      for (int micro = 0; micro < run.backwards; ++micro) {
        // The same data at every step, so that the loss must fall.
        const auto seed = static_cast<std::uint64_t>(1000 + micro * 10 + group.rank());
        const auto batch = test::make_batch(4, kWidth, kClasses, seed);
        const at::Tensor loss = test::loss_of(model, batch, shard::torch_dtype(run.dtype));
        losses.push_back(loss.item<float>());
        engine.backward(loss);
        const StepReport report = engine.step();
        EXPECT_EQ(report.boundary, micro == run.backwards - 1);
        if (!report.boundary) continue;
        EXPECT_TRUE(report.applied);
        norms.push_back(report.grad_norm);
      }
    }
    std::vector<at::Tensor> params;
    for (const shard::ParamSpec& param : engine.inside().sharded().plan().params) {
      params.push_back(engine.master(param.name));
    }
    if (group.rank() != 0) return;
    const std::lock_guard lock(mutex);
    result = {losses, params, norms};
  });
  return result;
}

void expect_same_bits(const Result& a, const Result& b, const std::string& what) {
  ASSERT_EQ(a.losses.size(), b.losses.size()) << what;
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(a.losses[i]), std::bit_cast<std::uint32_t>(b.losses[i]))
        << what << " loss " << i << ": " << a.losses[i] << " " << b.losses[i];
  }
  EXPECT_EQ(a.norms, b.norms) << what;
  for (std::size_t i = 0; i < a.params.size(); ++i) {
    EXPECT_TRUE(a.params[i].equal(b.params[i])) << what << " parameter " << i;
  }
}

using Cell = std::tuple<DType, int, int, shard::ReduceSchedule, bool>;

class Matrix : public testing::TestWithParam<Cell> {};

TEST_P(Matrix, AllStagesGiveTheSameBits) {
  const auto [dtype, world, backwards, schedule, clip] = GetParam();
  Case run{.stage = 0,
           .dtype = dtype,
           .world = world,
           .backwards = backwards,
           .schedule = schedule,
           .clip = clip};
  const Result reference = train(run);
  // Of the first micro-batch, at the last step and at the first.
  const std::size_t last = reference.losses.size() - static_cast<std::size_t>(backwards);
  EXPECT_LT(reference.losses[last], reference.losses.front());
  for (const int stage : {1, 2, 3}) {
    run.stage = stage;
    expect_same_bits(reference, train(run), fmt::format("stage {}", stage));
  }
  run.reuse_bytes = 1 << 20;
  expect_same_bits(reference, train(run), "stage 3 with reuse");
}

std::string cell_name(const testing::TestParamInfo<Cell>& info) {
  const auto [dtype, world, backwards, schedule, clip] = info.param;
  return fmt::format("{}_world{}_backwards{}_{}{}", name(dtype), world, backwards,
                     schedule == shard::ReduceSchedule::at_step ? "at_step" : "per_backward",
                     clip ? "_clip" : "");
}

INSTANTIATE_TEST_SUITE_P(All, Matrix,
                         testing::Combine(testing::Values(DType::fp32, DType::bf16, DType::fp16),
                                          testing::Values(1, 2, 3, 4), testing::Values(1, 3),
                                          testing::Values(shard::ReduceSchedule::at_step,
                                                          shard::ReduceSchedule::per_backward),
                                          testing::Bool()),
                         cell_name);

TEST(Stages, SchedulesCoincideWithOneBackwardPerStep) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    Case run{.stage = 2, .dtype = dtype, .world = 3};
    const Result at_step = train(run);
    run.schedule = shard::ReduceSchedule::per_backward;
    expect_same_bits(at_step, train(run), "per_backward");
  }
}

TEST(Stages, EveryOptimizerGivesTheSameBitsAtEveryStage) {
  using optim::Kind;
  for (const Kind kind : {Kind::adam, Kind::sgd, Kind::lion, Kind::adagrad, Kind::lamb}) {
    Case run{.stage = 0, .dtype = DType::bf16, .world = 3, .kind = kind};
    const Result reference = train(run);
    for (const int stage : {1, 3}) {
      run.stage = stage;
      expect_same_bits(reference, train(run), fmt::format("{} stage {}", name(kind), stage));
    }
  }
}

}  // namespace
}  // namespace capstan::engine
