#include "capstan/engine/pipeline_stage.h"

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/engine/engine_state.h"

namespace capstan::engine {

PipelineStage::PipelineStage(Engine& engine, const pipeline::Shape& shape)
    : engine_(engine), backwards_(shape.micro_batches * shape.chunks) {
  const std::int64_t accumulated = engine.options().batch.accumulation_steps;
  if (accumulated == shape.micro_batches) return;
  throw ConfigError(
      {.what = fmt::format("the schedule has {} micro-batches per step, but the engine accumulates "
                           "{}",
                           shape.micro_batches, accumulated),
       .where = engine.options().names("batch.accumulation_steps"),
       .fix = "give both the same number"});
}

void PipelineStage::backward(int /*chunk*/, const Differential& of) {
  const bool ends_step = ++done_ == backwards_;
  if (of.outputs.empty()) {
    engine_.inside().backward().run_nothing({.already_scaled = true, .boundary = ends_step});
    return;
  }
  if (!of.of_loss()) {
    engine_.backward(of.outputs, of.gradients, {.already_scaled = true, .boundary = ends_step});
    return;
  }
  const at::Tensor& loss = of.outputs.at(0);
  // A scale that fp16 cannot hold would reach the gradients of this stage alone.
  if (loss.scalar_type() == at::kHalf) {
    throw ConfigError({.what = "the loss of a pipeline is fp16",
                       .where = "pipeline::Stage::loss",
                       .fix = "compute the loss from outputs.to(torch::kFloat)"});
  }
  engine_.backward(loss, {.boundary = ends_step});
}

pipeline::Tensors PipelineStage::backward_inputs(int chunk, const Differential& of,
                                                 const pipeline::Tensors& inputs) {
  backward(chunk, of);
  pipeline::Tensors gradients;
  for (const at::Tensor& input : inputs) {
    const bool has = input.defined() && input.requires_grad();
    gradients.push_back(has ? input.grad() : at::Tensor());
  }
  return gradients;
}

void PipelineStage::backward_weights(int /*chunk*/, const Differential& /*of*/) {}

void PipelineStage::step() {
  done_ = 0;
  report_ = engine_.step(true);
}

void PipelineStage::failed(const std::string& why) { engine_.mesh().abort(why); }

}  // namespace capstan::engine
