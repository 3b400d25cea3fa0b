#include "capstan/tune/workload.h"

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/pipeline/partition.h"

namespace capstan::tune {

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

}  // namespace capstan::tune
