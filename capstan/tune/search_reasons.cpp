#include <fmt/format.h>

#include "capstan/tune/search.h"

namespace capstan::tune {
namespace {

// What `other` has instead; nothing where they differ in more than one thing.
std::optional<std::string> one_difference(const Space& space, const Combination& best,
                                          const Combination& other) {
  std::optional<std::string> found;
  int differences = 0;
  for (std::size_t axis = 0; axis < space.axes.size(); ++axis) {
    if (best.choice[axis] == other.choice[axis]) continue;
    ++differences;
    found = space.axes[axis].settings[static_cast<std::size_t>(other.choice[axis])].label;
  }
  if (best.micro != other.micro) {
    ++differences;
    const MicroBatch& micro = space.micros[static_cast<std::size_t>(other.micro)];
    found = fmt::format("micro-batch {} x {}", micro.samples, micro.accumulation_steps);
  }
  return differences == 1 ? found : std::nullopt;
}

std::string compared(const Outcome& other, const Outcome& best, Metric metric) {
  switch (other.end) {
    case End::measured:
      break;
    case End::out_of_memory:
      return "does not fit";
    case End::too_long:
      return "took too long";
    default:
      return "failed";
  }
  const double share = score(other, metric) / score(best, metric);
  return fmt::format("{:.0f} % as fast", 100 * share);
}

}  // namespace

std::vector<std::string> reasons(const Space& space, const Answer& answer, Metric metric) {
  std::vector<std::string> found;
  if (!answer.best) return found;
  for (const Trial& trial : answer.trials) {
    const auto instead = one_difference(space, answer.best->candidate, trial.candidate);
    if (!instead) continue;
    found.push_back(fmt::format("with {} instead: {}", *instead,
                                compared(trial.outcome, answer.best->outcome, metric)));
  }
  return found;
}

}  // namespace capstan::tune
