#include "capstan/engine/tie_stages.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"

namespace capstan::engine {

void tie_stages(shard::ModelView& view, const std::vector<SharedWeights>& ties, int stages) {
  if (ties.empty()) return;
  view.tie_of.resize(view.names.size());
  for (const SharedWeights& shared : ties) {
    const auto outside = [stages](int stage) { return stage < 0 || stage >= stages; };
    if (std::ranges::any_of(shared.tie.stages, outside) || shared.tie.stages.size() < 2 ||
        std::ranges::adjacent_find(shared.tie.stages, std::greater_equal<>()) !=
            shared.tie.stages.end()) {
      throw ConfigError({.what = fmt::format("weights cannot be shared by the stages [{}] of {}",
                                             fmt::join(shared.tie.stages, ", "), stages),
                         .where = shared.tie.key,
                         .fix = "name two or more stages, in ascending order"});
    }
    for (const std::string& name : shared.params) {
      const auto found = std::ranges::find(view.names, name);
      if (found == view.names.end()) {
        throw ConfigError({.what = fmt::format("the model has no parameter '{}'", name),
                           .where = shared.tie.key,
                           .fix = "name parameters as named_parameters() does"});
      }
      view.tie_of[static_cast<std::size_t>(found - view.names.begin())] =
          static_cast<int>(view.ties.size());
    }
    view.ties.push_back(shared.tie);
  }
}

}  // namespace capstan::engine
