#include "capstan/recompute/checkpoint.h"

#include <chrono>
#include <mutex>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "capstan/base/error.h"
#include "capstan/recompute/autocast_state.h"
#include "capstan/recompute/kept_tensor.h"
#include "capstan/recompute/rng_state.h"

namespace capstan::recompute {
namespace {

using Clock = std::chrono::steady_clock;

void synchronize_devices(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) continue;
    c10::impl::VirtualGuardImpl(tensor.device().type()).synchronizeDevice(tensor.device().index());
  }
}

// What backward needs to run the function again.
struct Recipe {
  Function function;
  std::vector<KeptTensor> inputs;
  RngState rng;
  AutocastState autocast;
  Options options;
  std::shared_ptr<SpanTimes> times;
  std::vector<std::size_t> differentiable;  // which outputs have a gradient, in order
};

Tensors run_again(const Recipe& recipe, const Tensors& inputs) {
  const torch::autograd::AutoGradMode with_gradients(true);
  const RngReplay rng(recipe.rng);
  const AutocastReplay autocast(recipe.autocast);
  return recipe.function(inputs);
}

void check_can_recompute() {
  if (torch::autograd::GradMode::is_enabled()) {
    throw ConfigError({.what = "a checkpointed function does not support second derivatives",
                       .where = "backward with create_graph",
                       .fix = "call the function itself instead of recompute::checkpoint"});
  }
  if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
    throw ConfigError({.what = "a checkpointed function cannot compute only some of its gradients",
                       .where = "torch::autograd::grad, or backward with inputs",
                       .fix = "use backward() without inputs, or call the function itself"});
  }
}

// Walks the recomputed part of the graph now, in a backward inside the running one.
void backward_inside(const Recipe& recipe, const Tensors& outputs, const Tensors& gradients) {
  Tensors roots;
  Tensors root_gradients;
  for (std::size_t i = 0; i < recipe.differentiable.size(); ++i) {
    const at::Tensor& output = outputs.at(recipe.differentiable[i]);
    if (!gradients[i].defined() || !output.requires_grad()) continue;
    roots.push_back(output);
    root_gradients.push_back(gradients[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
}

class CheckpointBackward final : public torch::autograd::Node {
 public:
  CheckpointBackward(std::shared_ptr<Recipe> recipe, torch::autograd::edge_list&& inputs)
      : Node(std::move(inputs)), recipe_(std::move(recipe)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const auto start = Clock::now();
    check_can_recompute();
    const std::shared_ptr<Recipe> recipe = held();
    Tensors inputs;
    for (const KeptTensor& kept : recipe->inputs) inputs.push_back(kept.restore());
    backward_inside(*recipe, run_again(*recipe, inputs), gradients);
    torch::autograd::variable_list result;
    for (const at::Tensor& input : inputs) {
      result.push_back(input.defined() ? input.grad() : at::Tensor());
    }
    if (recipe->options.synchronize) synchronize_devices(inputs);
    if (recipe->times) recipe->times->add_backward(Clock::now() - start);
    return result;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    recipe_.reset();
  }

  std::string name() const override { return "CheckpointBackward"; }

 private:
  // Not under the lock for the whole of apply(): the backward inside may come here again.
  std::shared_ptr<Recipe> held() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!recipe_) {
      throw ConfigError(
          {.what = "backward ran a second time through a graph that was already freed",
           .where = "a checkpointed function",
           .fix = "pass retain_graph=true to the first backward"});
    }
    return recipe_;
  }

  std::shared_ptr<Recipe> recipe_;
};

// Outputs as tensors of the outer graph. A detached alias is taken, because a function may return
// one of its inputs, whose own history must stay.
void attach(Tensors& outputs, const std::shared_ptr<Recipe>& recipe, const Tensors& inputs) {
  const auto node = std::shared_ptr<CheckpointBackward>(
      new CheckpointBackward(recipe, torch::autograd::collect_next_edges(inputs)),
      torch::autograd::deleteNode);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    at::Tensor& output = outputs[i];
    if (!output.defined() || !torch::autograd::isDifferentiableType(output.scalar_type())) continue;
    recipe->differentiable.push_back(i);
    output = output.detach();
    torch::autograd::set_history(output, node);
  }
}

}  // namespace

Tensors checkpoint(Function function, const Tensors& inputs, const Options& options,
                   std::shared_ptr<SpanTimes> times) {
  if (!torch::autograd::GradMode::is_enabled()) return function(inputs);
  const auto start = Clock::now();
  const auto recipe = std::make_shared<Recipe>();
  recipe->rng = RngState::of_devices(inputs);
  recipe->autocast = AutocastState::of_thread();
  recipe->options = options;
  recipe->times = options.profile ? std::move(times) : nullptr;
  for (const at::Tensor& input : inputs) recipe->inputs.emplace_back(input, options.to_host);
  Tensors outputs;
  {
    const torch::autograd::AutoGradMode without_gradients(false);
    outputs = function(inputs);
  }
  recipe->function = std::move(function);
  if (options.synchronize) synchronize_devices(outputs);
  if (recipe->times) recipe->times->add_forward(Clock::now() - start);
  attach(outputs, recipe, inputs);
  return outputs;
}

at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> function,
                      const at::Tensor& input, const Options& options,
                      std::shared_ptr<SpanTimes> times) {
  const auto as_list = [function = std::move(function)](const Tensors& inputs) {
    return Tensors{function(inputs.at(0))};
  };
  return checkpoint(Function(as_list), {input}, options, std::move(times)).at(0);
}

}  // namespace capstan::recompute
