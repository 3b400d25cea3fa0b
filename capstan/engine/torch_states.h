// The tensors and counters inside the states of libtorch's own optimizers, by the names that
// torch.optim gives them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
class OptimizerParamState;
}  // namespace torch::optim

namespace capstan::engine {

struct TorchState {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // those that are there
  std::optional<std::int64_t> step;
};

// "torch.adamw" and so on; empty for an optimizer that is not libtorch's.
std::string_view torch_kind(const torch::optim::Optimizer& optimizer);

// Throws ConfigError for a state that is not libtorch's.
TorchState look_into(torch::optim::OptimizerParamState& state);

// A state of the optimizer's kind with these tensors, each like `values` and zero.
std::unique_ptr<torch::optim::OptimizerParamState> make_torch_state(
    const torch::optim::Optimizer& optimizer, const at::Tensor& values,
    const std::vector<std::string>& names, std::int64_t step);

}  // namespace capstan::engine
