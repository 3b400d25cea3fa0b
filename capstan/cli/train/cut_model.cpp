#include "capstan/cli/train/cut_model.h"

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

namespace capstan::cli::train {

std::vector<engine::SharedWeights> shared_weights(models::Model& model, int stages) {
  if (stages == 1) return {};
  std::vector<engine::SharedWeights> shared;
  for (const std::string& name : model.as_stage()->shared_by_ends()) {
    shared.push_back({.tie = {name, {0, stages - 1}}, .params = {}});
    if (model.module().named_parameters().contains(name)) shared.back().params.push_back(name);
  }
  return shared;
}

std::string describe_stages(const std::vector<models::BlockRange>& parts) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::vector<std::string> has;
    if (parts[i].embeddings) has.emplace_back("embeddings");
    const models::BlockRange& part = parts[i];
    if (part.begin + 1 == part.end) {
      has.push_back(fmt::format("block {}", part.begin));
    } else {
      has.push_back(fmt::format("blocks {} to {}", part.begin, part.end - 1));
    }
    if (part.output) has.emplace_back("output");
    texts.push_back(fmt::format("stage {}: {}", i, fmt::join(has, ", ")));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace capstan::cli::train
