#include "capstan/pipeline/profile_cuts.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/layout/partition.h"
#include "capstan/pipeline/activations.h"

namespace capstan::pipeline {
namespace {

constexpr double kForbidden = std::numeric_limits<double>::infinity();
using Cuts = std::vector<std::int64_t>;

// What layers cost on each part of one schedule.
class Ledger {
 public:
  Ledger(std::span<const Layer> layers, const Target& target)
      : chunks_(target.shape.chunks),
        live_(peak_activations_by_part(make_schedule(target.schedule, target.shape))) {
    for (const Layer& layer : layers) {
      seconds_.push_back(seconds_.back() + layer.seconds);
      state_.push_back(state_.back() + layer.state_bytes);
      activations_.push_back(activations_.back() + layer.activation_bytes);
    }
  }

  double seconds(std::int64_t begin, std::int64_t end) const {
    return seconds_[end] - seconds_[begin];
  }
  // What a stage needs so that its share for this part is enough.
  std::int64_t stage_bytes(int part, std::int64_t begin, std::int64_t end) const {
    return chunks_ *
           (state_[end] - state_[begin] + live_[part] * (activations_[end] - activations_[begin]));
  }
  bool saves_activations(int part, std::int64_t begin, std::int64_t end) const {
    return live_[part] * (activations_[end] - activations_[begin]) > 0;
  }
  int parts() const { return static_cast<int>(live_.size()); }
  std::int64_t layers() const { return std::ssize(seconds_) - 1; }

  // The cuts whose fullest stage needs least.
  Cuts smallest() const {
    const auto bytes = [this](int part, std::int64_t begin, std::int64_t end) {
      return static_cast<double>(stage_bytes(part, begin, end));
    };
    return layout::cheapest_cuts(layers(), parts(), bytes).value();
  }
  // The part that needs most, and how much.
  std::pair<int, std::int64_t> fullest(const Cuts& cuts) const {
    std::pair<int, std::int64_t> most = {0, -1};
    for (int part = 0; part < parts(); ++part) {
      const std::int64_t bytes = stage_bytes(part, cuts[part], cuts[part + 1]);
      if (bytes > most.second) most = {part, bytes};
    }
    return most;
  }

 private:
  std::int64_t chunks_;
  std::vector<int> live_;  // by part
  std::vector<double> seconds_ = {0};
  std::vector<std::int64_t> state_ = {0};
  std::vector<std::int64_t> activations_ = {0};
};

bool can_run(const Target& target) {
  const Shape& shape = target.shape;
  return target.schedule != Kind::interleaved || shape.chunks == 1 ||
         shape.micro_batches % shape.stages == 0;
}

// How many stages would be enough, up to four times as many; nothing if not even those.
std::optional<int> enough_stages(std::span<const Layer> layers, Target target) {
  const int given = target.shape.stages;
  for (int stages = given + 1; stages <= 4 * given; ++stages) {
    target.shape.stages = stages;
    if (target.shape.parts() > std::ssize(layers)) break;
    if (!can_run(target)) continue;
    const Ledger ledger(layers, target);
    if (ledger.fullest(ledger.smallest()).second <= target.stage_bytes) return stages;
  }
  return std::nullopt;
}

[[noreturn]] void refuse(std::span<const Layer> layers, const Target& target,
                         const Ledger& ledger) {
  const Cuts cuts = ledger.smallest();
  const auto [part, bytes] = ledger.fullest(cuts);
  const std::optional<int> stages = enough_stages(layers, target);
  const bool saves = ledger.saves_activations(part, cuts[part], cuts[part + 1]);
  const std::int64_t last = cuts[part + 1] - 1;
  const std::string which =
      cuts[part] == last ? "layer " + std::to_string(last)
                         : "layers " + std::to_string(cuts[part]) + " to " + std::to_string(last);
  throw ConfigError({.what = "the model does not fit into " +
                             counted(target.shape.stages, "stage") + " of " +
                             format_bytes(target.stage_bytes) + ": at the best cut, stage " +
                             std::to_string(part % target.shape.stages) + " needs " +
                             format_bytes(bytes) + " for " + which,
                     .where = "pipeline partition by profile",
                     .fix = "give each stage " + format_bytes(bytes) +
                            (stages ? ", or use " + std::to_string(*stages) + " stages" : "") +
                            (saves ? ", or recompute activations" : "")});
}

}  // namespace

std::vector<std::int64_t> profile_cuts(std::span<const Layer> layers, const Target& target) {
  if (std::ssize(layers) < target.shape.parts()) {
    throw ConfigError({.what = counted(std::ssize(layers), "layer") + " for " +
                               counted(target.shape.parts(), "part") + " of a pipeline",
                       .where = "pipeline partition by profile",
                       .fix = "use fewer stages or chunks, so that each part has a layer"});
  }
  const Ledger ledger(layers, target);
  const auto fits = [&](int part, std::int64_t begin, std::int64_t end) {
    return ledger.stage_bytes(part, begin, end) <= target.stage_bytes;
  };
  const auto time = [&](int part, std::int64_t begin, std::int64_t end) {
    return fits(part, begin, end) ? ledger.seconds(begin, end) : kForbidden;
  };
  const std::optional<Cuts> fastest = layout::cheapest_cuts(ledger.layers(), ledger.parts(), time);
  if (!fastest) refuse(layers, target, ledger);
  double slowest = 0;
  for (int part = 0; part < ledger.parts(); ++part) {
    slowest = std::max(slowest, ledger.seconds((*fastest)[part], (*fastest)[part + 1]));
  }
  const auto room = [&](int part, std::int64_t begin, std::int64_t end) {
    const bool allowed = fits(part, begin, end) && ledger.seconds(begin, end) <= slowest;
    return allowed ? static_cast<double>(ledger.stage_bytes(part, begin, end)) : kForbidden;
  };
  return layout::cheapest_cuts(ledger.layers(), ledger.parts(), room).value();
}

}  // namespace capstan::pipeline
