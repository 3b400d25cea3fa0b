#include "capstan/models/gpt_weights.h"

#include <sstream>

#include <torch/csrc/autograd/grad_mode.h>

#include "capstan/base/error.h"

namespace capstan::models {
namespace {

constexpr const char* kGptPrefix = "transformer.";

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

}  // namespace

std::vector<NamedWeight> file_weights(GptImpl& model) {
  std::vector<NamedWeight> weights;
  for (const auto& item : model.named_parameters()) {
    at::Tensor weight = item.value().detach();
    if (item.key() == "transformer.wte.weight") weight = weight.narrow(0, 0, model.options().vocab);
    weights.push_back({item.key(), weight});
  }
  return weights;
}

void load_weights(GptImpl& model, const FindWeight& find) {
  const torch::autograd::AutoGradMode no_grad(false);
  std::string problems;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const NamedWeight& own : file_weights(model)) {
    std::optional<at::Tensor> given = find(own.name);
    if (!given) given = find(own.name.substr(std::string(kGptPrefix).size()));
    if (!given) {
      problems += "\n  " + own.name + " is missing";
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
