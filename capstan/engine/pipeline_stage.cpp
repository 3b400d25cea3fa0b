#include "capstan/engine/pipeline_stage.h"

#include <algorithm>
#include <utility>

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
  while (!pending_.empty()) finish_first_pending();  // gradients are added in one order
  run_whole(of);
}

void PipelineStage::run_whole(const Differential& of) {
  if (of.outputs.empty()) {
    engine_.inside().backward().run_nothing({.already_scaled = true, .boundary = next_ends_step()});
    return;
  }
  if (!of.of_loss()) {
    engine_.backward(of.outputs, of.gradients,
                     {.already_scaled = true, .boundary = next_ends_step()});
    return;
  }
  rest_of_scale_ = engine_.inside().backward().rest_of_scale(of.outputs.at(0), {});
  engine_.backward(of.outputs[0], {.boundary = next_ends_step()});
}

pipeline::Tensors PipelineStage::backward_inputs(int chunk, const Differential& of,
                                                 const pipeline::Tensors& inputs) {
  const auto wanted = [](const at::Tensor& input) {
    return input.defined() && input.requires_grad();
  };
  if (of.outputs.empty() || (halves_ && std::ranges::none_of(inputs, wanted))) {  // nobody waits
    pending_.push_back({of, std::nullopt});
    return pipeline::Tensors(inputs.size());
  }
  Backward& engine_backward = engine_.inside().backward();
  std::optional<Backward::Half> half;
  if (halves_) half = engine_backward.half(of.outputs, inputs);
  if (half) {
    const bool of_loss = of.of_loss();
    const pipeline::Tensors gradients = of_loss ? pipeline::Tensors(1) : of.gradients;
    if (of_loss) rest_of_scale_ = engine_backward.rest_of_scale(of.outputs.at(0), {});
    pipeline::Tensors found =
        engine_backward.run_inputs(*half, of.outputs, gradients, {.already_scaled = !of_loss});
    pending_.push_back({of, std::move(half)});
    return found;
  }
  backward(chunk, of);
  pipeline::Tensors gradients;
  for (const at::Tensor& input : inputs) {
    gradients.push_back(wanted(input) ? input.grad() : at::Tensor());
  }
  return gradients;
}

void PipelineStage::backward_weights(int /*chunk*/, const Differential& /*of*/) {
  if (!pending_.empty()) finish_first_pending();  // else it ran where inputs were asked for
}

void PipelineStage::finish_first_pending() {
  Pending first = std::move(pending_.front());
  pending_.pop_front();
  if (first.half) {
    engine_.inside().backward().run_weights(*std::move(first.half), {.boundary = next_ends_step()});
  } else {
    run_whole(first.of);
  }
}

void PipelineStage::step() {
  done_ = 0;
  report_ = engine_.step(true);
}

void PipelineStage::failed(const std::string& why) {
  pending_.clear();
  engine_.mesh().abort(why);
}

}  // namespace capstan::engine
