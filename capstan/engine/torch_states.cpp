#include "capstan/engine/torch_states.h"

#include <algorithm>

#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "capstan/base/error.h"

namespace capstan::engine {
namespace {

// One place that knows each kind's members: visit(state, tensor(name, value&), step(value&)).
template <typename State, typename OnTensor, typename OnStep>
void visit_adam(State& state, OnTensor&& tensor, OnStep&& step) {
  tensor("exp_avg", state.exp_avg());
  tensor("exp_avg_sq", state.exp_avg_sq());
  tensor("max_exp_avg_sq", state.max_exp_avg_sq());
  step(state.step());
}

template <typename OnTensor, typename OnStep>
bool visit_state(torch::optim::OptimizerParamState& any, OnTensor&& tensor, OnStep&& step) {
  if (auto* const adam = dynamic_cast<torch::optim::AdamParamState*>(&any)) {
    visit_adam(*adam, tensor, step);
  } else if (auto* const adamw = dynamic_cast<torch::optim::AdamWParamState*>(&any)) {
    visit_adam(*adamw, tensor, step);
  } else if (auto* const sgd = dynamic_cast<torch::optim::SGDParamState*>(&any)) {
    tensor("momentum_buffer", sgd->momentum_buffer());
  } else if (auto* const rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(&any)) {
    tensor("square_avg", rmsprop->square_avg());
    tensor("momentum_buffer", rmsprop->momentum_buffer());
    tensor("grad_avg", rmsprop->grad_avg());
    step(rmsprop->step());
  } else if (auto* const adagrad = dynamic_cast<torch::optim::AdagradParamState*>(&any)) {
    tensor("sum", adagrad->sum());
    step(adagrad->step());
  } else {
    return false;
  }
  return true;
}

std::unique_ptr<torch::optim::OptimizerParamState> empty_state(std::string_view kind) {
  if (kind == "torch.adam") return std::make_unique<torch::optim::AdamParamState>();
  if (kind == "torch.adamw") return std::make_unique<torch::optim::AdamWParamState>();
  if (kind == "torch.sgd") return std::make_unique<torch::optim::SGDParamState>();
  if (kind == "torch.rmsprop") return std::make_unique<torch::optim::RMSpropParamState>();
  return std::make_unique<torch::optim::AdagradParamState>();
}

[[noreturn]] void refuse_foreign() {
  throw ConfigError({.what = "the state of this optimizer cannot be saved or loaded",
                     .where = "Parts::optimizer",
                     .fix = "use one of libtorch's element-wise optimizers or an "
                            "Options::optimizer, or save with weights_only"});
}

}  // namespace

std::string_view torch_kind(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr) return "torch.adam";
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) return "torch.adamw";
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) return "torch.sgd";
  if (dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr) return "torch.rmsprop";
  if (dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr) return "torch.adagrad";
  return "";
}

TorchState look_into(torch::optim::OptimizerParamState& state) {
  TorchState result;
  const bool known = visit_state(
      state,
      [&result](const char* name, at::Tensor& value) {
        if (value.defined()) result.tensors.emplace_back(name, value);
      },
      [&result](std::int64_t& step) { result.step = step; });
  if (!known) refuse_foreign();
  return result;
}

std::unique_ptr<torch::optim::OptimizerParamState> make_torch_state(
    const torch::optim::Optimizer& optimizer, const at::Tensor& values,
    const std::vector<std::string>& names, std::int64_t step) {
  const std::string_view kind = torch_kind(optimizer);
  if (kind.empty()) refuse_foreign();
  auto state = empty_state(kind);
  visit_state(
      *state,
      [&](const char* name, at::Tensor& value) {
        if (std::find(names.begin(), names.end(), name) != names.end()) {
          value = at::zeros_like(values);
        }
      },
      [step](std::int64_t& value) { value = step; });
  return state;
}

}  // namespace capstan::engine
