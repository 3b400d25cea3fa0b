#include "capstan/engine/find_nan.h"

#include <utility>

#include <fmt/format.h>

namespace capstan::engine {

FindNan::FindNan(const Common& common, const shard::ModelView& view) : common_(common) {
  for (const shard::BoundarySpec& boundary : view.boundaries) units_.push_back(boundary.name);
}

void FindNan::output_not_finite(int boundary) {
  const std::string& unit = units_[static_cast<std::size_t>(boundary)];
  tell(unit.empty() ? "the output of the model" : fmt::format("the output of {}", unit),
       last_output_);
}

void FindNan::gradient_not_finite(int param) {
  const auto& params = common_.sharded.plan().params;
  tell(fmt::format("the gradient of {}", params[static_cast<std::size_t>(param)].name),
       last_gradient_);
}

void FindNan::tell(const std::string& what, std::int64_t& last) {
  const std::int64_t step = common_.run.progress.steps + 1;
  if (std::exchange(last, step) == step) return;
  common_.diary.saw_non_finite(step, what);
  common_.log.say_on_any_rank(
      LogLevel::warning, fmt::format("step {}: {} is the first on rank {} that is not finite", step,
                                     what, common_.group.rank()));
}

}  // namespace capstan::engine
