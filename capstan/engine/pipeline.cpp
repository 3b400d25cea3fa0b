#include "capstan/engine/pipeline.h"

#include <utility>

#include <fmt/format.h>
#include <torch/nn/module.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/engine/engine_state.h"
#include "capstan/engine/make_mesh.h"
#include "capstan/engine/pipeline_stage.h"
#include "capstan/layout/partition.h"
#include "capstan/pipeline/schedules.h"

namespace capstan::engine {
namespace {

pipeline::Shape shape_of(const Options& options) {
  return {.stages = options.mesh.pipe,
          .micro_batches = static_cast<int>(options.batch.accumulation_steps)};
}

// Where each stage begins, and the end.
std::vector<std::int64_t> cut(const std::vector<PipelineLayer>& layers, int stages) {
  if (std::ssize(layers) < stages) {
    throw ConfigError(
        {.what = fmt::format("{} cannot be cut into {}", counted(std::ssize(layers), "layer"),
                             counted(stages, "stage")),
         .where = "engine::Pipeline",
         .fix = "give a layer for every stage, or fewer stages"});
  }
  std::vector<double> costs;
  for (const PipelineLayer& layer : layers) costs.push_back(layer.cost);
  return layout::balanced_cuts(costs, stages);
}

using Modules = std::vector<torch::nn::AnyModule>;

Modules make_stage(const std::vector<PipelineLayer>& layers, const Options& options,
                   const comm::Group& group, torch::nn::Module& parent) {
  const layout::Mesh mesh = make_mesh(options, group.size());
  const auto stage = static_cast<std::size_t>(mesh.place(layout::Axis::pipe, group.rank()));
  const std::vector<std::int64_t> cuts = cut(layers, options.mesh.pipe);
  Modules modules;
  for (std::int64_t i = cuts[stage]; i < cuts[stage + 1]; ++i) {
    const PipelineLayer& layer = layers[static_cast<std::size_t>(i)];
    modules.push_back(layer.make());
    parent.register_module(layer.name, modules.back().ptr());
  }
  return modules;
}

}  // namespace

class Pipeline::Layers final : public PipelineStage {
 public:
  Layers(Engine& engine, std::vector<torch::nn::AnyModule> modules, LossFunction loss)
      : PipelineStage(engine, shape_of(engine.options())),
        modules_(std::move(modules)),
        loss_(std::move(loss)) {}

  pipeline::Tensors inputs(int micro_batch) override { return {read(micro_batch).inputs}; }
  pipeline::Tensors labels(int micro_batch) override { return {read(micro_batch).targets}; }
  pipeline::Tensors forward(int /*chunk*/, const pipeline::Tensors& inputs) override {
    at::Tensor x = inputs.at(0);
    for (torch::nn::AnyModule& layer : modules_) x = layer.forward<at::Tensor>(x);
    return {x};
  }
  at::Tensor loss(const pipeline::Tensors& outputs, const pipeline::Tensors& labels) override {
    return loss_(outputs.at(0), labels.at(0));
  }

  ReadBatch read;  // of the pass that is under way

 private:
  std::vector<torch::nn::AnyModule> modules_;
  LossFunction loss_;
};

Pipeline::Pipeline(const std::vector<PipelineLayer>& layers, LossFunction loss,
                   const Options& options, Parts parts) {
  if (parts.group.all == nullptr) {
    throw ConfigError({.what = "a pipeline needs to know its ranks before it makes its layers",
                       .where = "engine::Pipeline",
                       .fix = "make a comm::World and pass it in Parts::group"});
  }
  auto parent = std::make_shared<torch::nn::Module>("stage");
  Modules modules = make_stage(layers, options, *parts.group.all, *parent);
  engine_ = std::make_unique<Engine>(std::move(parent), options, std::move(parts));
  layers_ = std::make_unique<Layers>(*engine_, std::move(modules), std::move(loss));
  training_ = std::make_unique<pipeline::Executor>(
      make_schedule(options.pipeline.schedule, shape_of(options)),
      engine_->mesh().over(layout::Axis::pipe), *layers_, engine_->inside().sharded().device());
}

Pipeline::~Pipeline() = default;

double Pipeline::train(const ReadBatch& read) {
  layers_->read = read;
  return mean(training_->run());
}

StepReport Pipeline::last_step() const { return layers_->last_step(); }

double Pipeline::evaluate(int micro_batches, const ReadBatch& read) {
  layers_->read = read;
  const pipeline::Shape shape = {.stages = engine_->options().mesh.pipe,
                                 .micro_batches = micro_batches};
  pipeline::Executor executor(make_schedule(pipeline::Kind::inference, shape),
                              engine_->mesh().over(layout::Axis::pipe), *layers_,
                              engine_->inside().sharded().device());
  return mean(executor.run());
}

double Pipeline::mean(const pipeline::Tensors& losses) {
  return mean_losses(engine_->mesh(), engine_->inside().sharded().device(), losses, {}).all.at(0);
}

}  // namespace capstan::engine
