#include "capstan/cli/train/cut_model.h"

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "capstan/base/error.h"
#include "capstan/pipeline/partition.h"

namespace capstan::cli::train {

std::vector<models::BlockRange> cut_model(const models::Blueprint& model, int stages,
                                          std::int64_t tokens) {
  const std::vector<double> costs = model.layer_costs(tokens);
  if (costs.empty()) {
    throw ConfigError({.what = fmt::format("a {} cannot be cut into stages", model.title()),
                       .where = "pipeline.stages",
                       .fix = "train it in one piece"});
  }
  const std::vector<std::int64_t> begins = pipeline::cut_blocks(costs, stages);
  std::vector<models::BlockRange> parts;
  for (std::size_t stage = 0; stage + 1 < begins.size(); ++stage) {
    parts.push_back({.begin = begins[stage],
                     .end = begins[stage + 1],
                     .embeddings = stage == 0,
                     .output = stage + 2 == begins.size()});
  }
  return parts;
}

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
