// Stages of a pipeline with an engine each: the bits of one engine that has the whole model.
#include "capstan/engine/pipeline_stage.h"

#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/pipeline/executor.h"
#include "capstan/pipeline/schedules.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thread_groups.h"

namespace capstan::test {
namespace {

using pipeline::Kind;
using pipeline::Shape;
using pipeline::Tensors;
using testing::HasSubstr;

constexpr int kSteps = 3;
constexpr int kData = 2;  // data-parallel ranks

// Some parts of a model, each one block, under the names that they have in the whole.
struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(const std::vector<int>& parts) {
    for (const int part : parts) {
      blocks.push_back(
          register_module("block" + std::to_string(part), nn::Unit<BlockImpl>(kWidth)));
      fill(*blocks.back(), static_cast<std::uint64_t>(31 + part));
    }
  }
  std::vector<nn::Unit<BlockImpl>> blocks;
};
TORCH_MODULE(Chain);

std::uint64_t seed_of(int step, int micro_batch, int data_rank) {
  return static_cast<std::uint64_t>(1000 * step + 10 * micro_batch + data_rank);
}

at::ScalarType dtype_of(const engine::Options& options) {
  switch (options.precision.params) {
    case DType::bf16:
      return at::kBFloat16;
    case DType::fp16:
      return at::kHalf;
    default:
      return at::kFloat;
  }
}

at::Tensor input_of(std::uint64_t seed, at::ScalarType dtype) {
  return make_batch(4, kWidth, kClasses, seed).inputs.to(dtype);
}

at::Tensor loss_of_output(const at::Tensor& output, std::uint64_t seed) {
  const Batch batch = make_batch(4, kWidth, kWidth, seed);
  return torch::nn::functional::cross_entropy(output.to(at::kFloat), batch.targets);
}

struct Result {
  std::map<std::string, at::Tensor> masters;
  std::vector<engine::StepReport> reports;
};

void add_masters(Engine& engine, Result& result) {
  for (const shard::ParamSpec& param : engine.inside().sharded().plan().params) {
    result.masters[param.name] = engine.master(param.name).clone();
  }
}

Result whole_model(const engine::Options& options, int parts) {
  Result result;
  run_ranks(kData, [&](comm::Group& group) {
    std::vector<int> all(static_cast<std::size_t>(parts));
    std::iota(all.begin(), all.end(), 0);
    Chain model(all);
    Engine engine(model, options, {.group = &group});
    Result mine;
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < options.batch.accumulation_steps; ++i) {
        const std::uint64_t seed = seed_of(step, i, group.rank());
        at::Tensor x = input_of(seed, dtype_of(options));
        for (auto& block : model->blocks) x = block(x);
        engine.backward(loss_of_output(x, seed));
        const engine::StepReport report = engine.step();
        if (report.boundary) mine.reports.push_back(report);
      }
    }
    add_masters(engine, mine);
    if (group.rank() == 0) result = std::move(mine);
  });
  return result;
}

class ChainStage final : public engine::PipelineStage {
 public:
  ChainStage(Engine& engine, Chain& model, const Shape& shape, int data_rank)
      : PipelineStage(engine, shape),
        model_(model),
        dtype_(dtype_of(engine.options())),
        data_rank_(data_rank) {}

  Tensors inputs(int micro_batch) override { return {input_of(seed(micro_batch), dtype_)}; }
  Tensors labels(int micro_batch) override {
    labelled_ = micro_batch;
    return {};
  }
  Tensors forward(int chunk, const Tensors& inputs) override {
    return {model_->blocks[static_cast<std::size_t>(chunk)](inputs[0])};
  }
  at::Tensor loss(const Tensors& outputs, const Tensors&) override {
    return loss_of_output(outputs[0], seed(labelled_));
  }

  int now = 0;  // the step

 private:
  std::uint64_t seed(int micro_batch) const { return seed_of(now, micro_batch, data_rank_); }

  Chain& model_;
  at::ScalarType dtype_;
  int data_rank_;
  int labelled_ = 0;
};

// Of one rank of the mesh, with what it stands on.
using Act = std::function<void(Engine&, ChainStage&, comm::Group& pipe, int data_rank)>;

void on_mesh(const engine::Options& options, const Shape& shape, const Act& act) {
  ThreadMeetings meetings;
  const int world = shape.stages * kData;
  run_ranks(world, [&](comm::Group& group) {
    ThreadGroups maker(meetings, group.rank());
    comm::MeshGroups mesh(layout::Mesh({.pipe = shape.stages, .shard = kData}, world), group,
                          &maker);
    comm::Group& pipe = mesh.over(layout::Axis::pipe);
    comm::Group& data = mesh.over(layout::kDataAxes);
    try {
      std::vector<int> parts;
      for (int chunk = 0; chunk < shape.chunks; ++chunk) {
        parts.push_back(shape.part(pipe.rank(), chunk));
      }
      Chain model(parts);
      Engine engine(model, options, {.group = {data, maker}, .pipe = &pipe});
      ChainStage stage(engine, model, shape, data.rank());
      act(engine, stage, pipe, data.rank());
    } catch (const std::exception& error) {
      mesh.abort(error.what());
      throw;
    }
  });
}

Result pipelined(const engine::Options& options, Kind kind, const Shape& shape) {
  Result result;
  std::mutex mutex;
  on_mesh(options, shape, [&](Engine& engine, ChainStage& stage, comm::Group& pipe, int rank) {
    pipeline::Executor executor(make_schedule(kind, shape), pipe, stage, at::kCPU);
    std::vector<engine::StepReport> reports;
    for (stage.now = 0; stage.now < kSteps; ++stage.now) {
      executor.run();
      reports.push_back(stage.last_step());
    }
    Result mine;
    add_masters(engine, mine);
    if (rank != 0) return;
    const std::lock_guard lock(mutex);
    result.masters.merge(mine.masters);
    if (result.reports.empty()) result.reports = reports;
    for (int i = 0; i < kSteps; ++i) {  // all stages agree
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(reports[at].applied, result.reports[at].applied);
      EXPECT_EQ(reports[at].loss_scale, result.reports[at].loss_scale);
      if (!reports[at].applied) continue;
      EXPECT_EQ(reports[at].grad_norm, result.reports[at].grad_norm);
    }
  });
  return result;
}

void expect_same(const Result& actual, const Result& expected, const std::string& what) {
  ASSERT_EQ(actual.masters.size(), expected.masters.size()) << what;
  for (const auto& [name, value] : expected.masters) {
    EXPECT_TRUE(at::equal(actual.masters.at(name), value)) << what << ": " << name;
  }
  ASSERT_EQ(actual.reports.size(), expected.reports.size()) << what;
  for (std::size_t i = 0; i < expected.reports.size(); ++i) {
    EXPECT_EQ(actual.reports[i].applied, expected.reports[i].applied) << what << ", step " << i;
    EXPECT_EQ(actual.reports[i].loss_scale, expected.reports[i].loss_scale) << what;
    if (!expected.reports[i].applied) continue;
    EXPECT_NEAR(actual.reports[i].grad_norm, expected.reports[i].grad_norm,
                1e-12 * expected.reports[i].grad_norm)
        << what << ", step " << i;
  }
}

engine::Options options_of(int stage, int micro_batches, DType dtype = DType::fp32) {
  engine::Options options = fp32_options(stage);
  options.precision.params = dtype;
  options.batch.accumulation_steps = micro_batches;
  options.gradient_clipping = 0.05;  // every step is clipped
  return options;
}

TEST(PipelineStage, EveryZeroStageAndScheduleGivesTheBitsOfOneEngine) {
  for (const int zero : {0, 1, 2, 3}) {
    const engine::Options options = options_of(zero, 4);
    const Result two = whole_model(options, 2);
    ASSERT_GT(two.reports.back().grad_norm, options.gradient_clipping);
    for (const Kind kind : {Kind::gpipe, Kind::one_f_one_b, Kind::zb_h1, Kind::deepspeed}) {
      expect_same(pipelined(options, kind, {.stages = 2, .micro_batches = 4}), two,
                  "stage " + std::to_string(zero) + ", " + std::string(to_string(kind)));
    }
    expect_same(
        pipelined(options, Kind::interleaved, {.stages = 2, .micro_batches = 4, .chunks = 2}),
        whole_model(options, 4), "stage " + std::to_string(zero) + ", interleaved");
  }
}

TEST(PipelineStage, OffloadedLateAndEarlyUpdatesToo) {
  for (const int zero : {1, 2, 3}) {
    for (const auto early : {store::EarlyUpdates::never, store::EarlyUpdates::always}) {
      engine::Options options = options_of(zero, 3);
      options.store.optimizer.placement = store::Placement::host;
      options.store.optimizer.early_updates = early;
      expect_same(pipelined(options, Kind::one_f_one_b, {.stages = 3, .micro_batches = 3}),
                  whole_model(options, 3), "stage " + std::to_string(zero));
    }
  }
}

TEST(PipelineStage, SixteenBitsToo) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const int zero : {1, 2}) {
      const engine::Options options = options_of(zero, 3, dtype);
      expect_same(pipelined(options, Kind::one_f_one_b, {.stages = 2, .micro_batches = 3}),
                  whole_model(options, 2), std::string(name(dtype)));
    }
  }
}

// A scale that is too large at first: whichever stage overflows, all skip the step.
TEST(PipelineStage, AllSkipAStepThatOneCannotTake) {
  engine::Options options = options_of(1, 2, DType::fp16);
  options.precision.loss_scale.initial_scale_power = 19;
  options.precision.loss_scale.hysteresis = 1;
  const Result expected = whole_model(options, 3);
  EXPECT_FALSE(expected.reports.front().applied);
  EXPECT_TRUE(expected.reports.back().applied);
  expect_same(pipelined(options, Kind::one_f_one_b, {.stages = 3, .micro_batches = 2}), expected,
              "overflow");
}

TEST(PipelineStage, TheStageThatOverflowsIsNamedOnTheOthers) {
  const Shape shape = {.stages = 2, .micro_batches = 1};
  on_mesh(options_of(0, 1), shape, [&](Engine& engine, ChainStage& stage, comm::Group& pipe, int) {
    pipeline::Executor executor(make_schedule(Kind::gpipe, shape), pipe, stage, at::kCPU);
    executor.run();
    EXPECT_TRUE(stage.last_step().applied);
    // By hand: only the second stage has one that is not finite.
    engine.set_gradient(pipe.rank() == 0 ? "block0.up.weight" : "block1.up.weight",
                        at::full({2 * kWidth + 1, kWidth}, pipe.rank() == 0 ? 1.0 : std::nan("")));
    const engine::StepReport report = engine.step(true);
    EXPECT_FALSE(report.applied);
    EXPECT_EQ(report.non_finite, pipe.rank() == 0 ? "a parameter of stage 1" : "block1.up.weight");
  });
}

TEST(PipelineStage, RefusesAnotherNumberOfMicroBatches) {
  try {
    on_mesh(options_of(1, 3), {.stages = 2, .micro_batches = 4},
            [](Engine&, ChainStage&, comm::Group&, int) {});
    FAIL() << "the average would be wrong";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("4 micro-batches per step, but the engine accumulates 3"));
  }
}

TEST(PipelineStage, RefusesStagesThatAreConfiguredDifferently) {
  try {
    run_ranks(2, [&](comm::Group& pipe) {
      comm::Group alone(comm::make_loopback(comm::make_loopback_hub(1), 0));
      engine::Options options = options_of(1, 1);
      options.gradient_clipping = pipe.rank() + 1;
      Chain model(std::vector<int>{pipe.rank()});
      Engine engine(model, options, {.group = &alone, .pipe = &pipe});
    });
    FAIL() << "they would clip differently";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("gradient_clipping is 1"));
  }
}

TEST(PipelineStage, RefusesCheckpointsOfOneStage) {
  const TempFolder folder;
  on_mesh(options_of(1, 1), {.stages = 2, .micro_batches = 1},
          [&](Engine& engine, ChainStage&, comm::Group&, int) {
            EXPECT_THROW(engine.save_checkpoint(folder.path()), ConfigError);
            EXPECT_THROW(engine.load_checkpoint(folder.path()), ConfigError);
          });
}

}  // namespace
}  // namespace capstan::test
