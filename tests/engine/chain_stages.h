// Blocks in a row, whole or as stages of a pipeline that have an engine each.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <numeric>

#include <gtest/gtest.h>

#include "capstan/engine/pipeline_stage.h"
#include "capstan/pipeline/executor.h"
#include "capstan/pipeline/schedules.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/thread_groups.h"

namespace capstan::test {

using pipeline::Kind;
using pipeline::Shape;
using pipeline::Tensors;

inline constexpr int kSteps = 3;
inline constexpr int kData = 2;  // data-parallel ranks

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

inline std::uint64_t seed_of(int step, int micro_batch, int data_rank) {
  return static_cast<std::uint64_t>(1000 * step + 10 * micro_batch + data_rank);
}

inline at::ScalarType dtype_of(const engine::Options& options) {
  switch (options.precision.params) {
    case DType::bf16:
      return at::kBFloat16;
    case DType::fp16:
      return at::kHalf;
    default:
      return at::kFloat;
  }
}

inline at::Tensor input_of(std::uint64_t seed, at::ScalarType dtype) {
  return make_batch(4, kWidth, kClasses, seed).inputs.to(dtype);
}

inline at::Tensor loss_of_output(const at::Tensor& output, std::uint64_t seed) {
  const Batch batch = make_batch(4, kWidth, kWidth, seed);
  return torch::nn::functional::cross_entropy(output.to(at::kFloat), batch.targets);
}

struct Result {
  std::map<std::string, at::Tensor> masters;
  std::vector<engine::StepReport> reports;
};

inline void add_masters(Engine& engine, Result& result) {
  for (const shard::ParamSpec& param : engine.inside().sharded().plan().params) {
    result.masters[param.name] = engine.master(param.name).clone();
  }
}

inline engine::Options options_of(int stage, int micro_batches, DType dtype = DType::fp32) {
  engine::Options options = fp32_options(stage);
  options.precision.params = dtype;
  options.batch.accumulation_steps = micro_batches;
  options.gradient_clipping = 0.05;  // every step is clipped
  return options;
}

inline Result whole_model(const engine::Options& options, int parts) {
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

// Data that follows from the step, the micro-batch and the data rank; what it computes is for
// others to say.
class SeededStage : public engine::PipelineStage {
 public:
  SeededStage(Engine& engine, const Shape& shape, int data_rank)
      : PipelineStage(engine, shape), dtype_(dtype_of(engine.options())), data_rank_(data_rank) {}

  Tensors inputs(int micro_batch) final { return {input_of(seed(micro_batch), dtype_)}; }
  Tensors labels(int micro_batch) final {
    labelled_ = micro_batch;
    return {};
  }
  at::Tensor loss(const Tensors& outputs, const Tensors&) final {
    return loss_of_output(outputs[0], seed(labelled_));
  }

  int now = 0;  // the step

 private:
  std::uint64_t seed(int micro_batch) const { return seed_of(now, micro_batch, data_rank_); }

  at::ScalarType dtype_;
  int data_rank_;
  int labelled_ = 0;
};

// Each chunk is one block.
class ChainStage final : public SeededStage {
 public:
  ChainStage(Engine& engine, Chain& model, const Shape& shape, int data_rank)
      : SeededStage(engine, shape, data_rank), model_(model) {}

  Tensors forward(int chunk, const Tensors& inputs) override {
    const at::Tensor x = taken ? taken(inputs[0]) : inputs[0];
    return {model_->blocks[static_cast<std::size_t>(chunk)](x)};
  }

  std::function<at::Tensor(const at::Tensor&)> taken;  // instead of a forward's input

 private:
  Chain& model_;
};

// Of one rank of the mesh, with what it stands on.
using Act = std::function<void(Engine&, ChainStage&, comm::Group& pipe, int data_rank)>;

inline void on_mesh(engine::Options options, const Shape& shape, const Act& act) {
  ThreadMeetings meetings;
  options.mesh.pipe = shape.stages;
  run_ranks(shape.stages * kData, [&](comm::Group& group) {
    ThreadGroups maker(meetings, group.rank());
    const int stage_number = group.rank() / kData;
    std::vector<int> parts;
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      parts.push_back(shape.part(stage_number, chunk));
    }
    Chain model(parts);
    Engine engine(model, options, {.group = {group, maker}});
    try {
      ChainStage stage(engine, model, shape, group.rank() % kData);
      act(engine, stage, engine.mesh().over(layout::Axis::pipe), group.rank() % kData);
    } catch (const std::exception& error) {
      engine.mesh().abort(error.what());
      throw;
    }
  });
}

inline Result pipelined(const engine::Options& options, Kind kind, const Shape& shape) {
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

}  // namespace capstan::test
