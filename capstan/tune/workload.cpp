#include "capstan/tune/workload.h"

#include <algorithm>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/pipeline/partition.h"

namespace capstan::tune {

std::vector<models::BlockRange> cut_model(const models::Blueprint& model, int stages,
                                          std::int64_t tokens) {
  const std::vector<double> costs = model.layer_costs(tokens);
  const std::int64_t blocks = std::ssize(costs) - 2;
  if (blocks < stages) {
    throw ConfigError(
        {.what = costs.empty() ? fmt::format("a {} cannot be cut into stages", model.title())
                               : fmt::format("a model of {} has too few for {} stages",
                                             counted(blocks, "block"), stages),
         .where = fmt::format("--pipe {}", stages),
         .fix = costs.empty() ? "train it without --pipe" : "give fewer stages, or more --layers"});
  }
  std::vector<pipeline::Layer> layers;
  for (const double cost : costs) {
    layers.push_back({.type = "", .params = static_cast<std::int64_t>(cost)});
  }
  const std::vector<std::int64_t> cuts = cut_layers({.kind = pipeline::Method::Kind::parameters},
                                                    layers, {.shape = {.stages = stages}});
  // Layer 0 are the embeddings, the last one is the output. Every stage gets a block.
  std::vector<std::int64_t> begins = {0};
  for (int stage = 1; stage < stages; ++stage) {
    begins.push_back(std::clamp(cuts[static_cast<std::size_t>(stage)] - 1, begins.back() + 1,
                                blocks - (stages - stage)));
  }
  begins.push_back(blocks);
  std::vector<models::BlockRange> parts;
  for (std::size_t stage = 0; stage + 1 < begins.size(); ++stage) {
    parts.push_back({.begin = begins[stage],
                     .end = begins[stage + 1],
                     .embeddings = stage == 0,
                     .output = stage + 2 == begins.size()});
  }
  return parts;
}

}  // namespace capstan::tune
