#include "capstan/models/weights.h"

#include <sstream>

#include <torch/csrc/autograd/grad_mode.h>

#include "capstan/base/error.h"
#include "capstan/tensor_parallel/take.h"

namespace capstan::models {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

tensor_parallel::WeightCut of_file(const NamedWeight& weight) {
  return tensor_parallel::first_rows(weight.cut.value(), weight.file_rows);
}

}  // namespace

void load_weights(Model& model, const FindWeight& find) {
  const torch::autograd::AutoGradMode no_grad(false);
  std::string problems;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  const std::string root = model.blueprint().file_names().root;
  for (const NamedWeight& own : model.file_weights()) {
    std::optional<at::Tensor> given = find(own.name);
    if (!given && own.name.starts_with(root)) given = find(own.name.substr(root.size()));
    if (!given) {
      problems += "\n  " + own.name + " is missing";
    } else if (own.cut) {
      if (given->sizes() != at::IntArrayRef(of_file(own).shape)) {
        problems += "\n  " + own.name + " has shape " + shape_text(*given);
      } else if (own.weight.numel() > 0) {
        copies.emplace_back(own.weight, tensor_parallel::take(*given, of_file(own)));
      }
    } else if (given->sizes() != own.weight.sizes()) {
      problems += "\n  " + own.name + " has shape " + shape_text(*given) + ", the model " +
                  shape_text(own.weight);
    } else {
      copies.emplace_back(own.weight, *given);
    }
  }
  if (!problems.empty()) {
    throw ConfigError({.what = "the weights do not fit the model:" + problems,
                       .where = "models::load_weights",
                       .fix = "choose the model size that the weights have"});
  }
  for (const auto& [own, given] : copies) own.copy_(given);
}

}  // namespace capstan::models
