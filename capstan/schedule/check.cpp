#include <algorithm>
#include <string>
#include <string_view>

#include "capstan/base/error.h"
#include "capstan/schedule/schedule.h"

namespace capstan::schedule {
namespace {

// Collects what is wrong with one schedule.
class Findings {
 public:
  explicit Findings(int groups) : groups_(groups) {}

  void need(bool good, const std::string& problem) {
    if (!good) problems += "\n  " + problem;
  }
  void need_at_least(std::int64_t least, std::int64_t value, const std::string& key) {
    need(value >= least,
         key + " is " + std::to_string(value) + ", must be at least " + std::to_string(least));
  }
  void need_per_group(const PerGroup& values, const std::string& key, bool may_be_empty) {
    const auto count = static_cast<int>(values.size());
    need(count == 1 || count == groups_ || (count == 0 && may_be_empty),
         key + " has " + std::to_string(count) + " values, must have 1 or one for each of the " +
             std::to_string(groups_) + " parameter groups");
    for (const double value : values) {
      need(value >= 0.0, key + " is " + std::to_string(value) + ", must not be negative");
    }
  }

  std::string problems;

 private:
  int groups_;
};

void inspect(const Constant&, Findings&) {}

void inspect(const WarmupLr& warmup, Findings& findings) {
  findings.need_per_group(warmup.min_lr, "min_lr", /*may_be_empty=*/false);
  findings.need_per_group(warmup.max_lr, "max_lr", /*may_be_empty=*/true);
  findings.need_at_least(0, warmup.num_steps, "num_steps");
  findings.need_at_least(-1, warmup.last_step, "last_step");
}

void inspect(const WarmupDecayLr& decay, Findings& findings) {
  inspect(decay.warmup, findings);
  findings.need_at_least(1, decay.total_steps, "total_steps");
}

void inspect(const WarmupCosineLr& cosine, Findings& findings) {
  findings.need_at_least(1, cosine.total_steps, "total_steps");
  findings.need_at_least(0, cosine.warmup_steps, "warmup_steps");
  findings.need_at_least(-1, cosine.last_step, "last_step");
  findings.need(cosine.warmup_min_ratio >= 0.0 && cosine.cos_min_ratio >= 0.0,
                "warmup_min_ratio and cos_min_ratio must not be negative");
}

void inspect(const OneCycle& cycle, Findings& findings) {
  findings.need_per_group(cycle.cycle_min_lr, "cycle_min_lr", /*may_be_empty=*/false);
  findings.need_per_group(cycle.cycle_max_lr, "cycle_max_lr", /*may_be_empty=*/false);
  findings.need_per_group(cycle.cycle_min_mom, "cycle_min_mom", /*may_be_empty=*/false);
  findings.need_per_group(cycle.cycle_max_mom, "cycle_max_mom", /*may_be_empty=*/false);
  findings.need_at_least(1, cycle.first_steps, "first_steps");
  findings.need_at_least(0, cycle.second_steps.value_or(0), "second_steps");
  findings.need_at_least(0, cycle.first_stairs, "first_stairs");
  findings.need_at_least(0, cycle.second_stairs.value_or(0), "second_stairs");
  findings.need_at_least(0, cycle.decay_steps, "decay_steps");
  findings.need_at_least(-1, cycle.last_step, "last_step");
  findings.need(cycle.decay_lr_rate >= 0.0, "decay_lr_rate must not be negative");
  const auto below_1 = [](double x) { return x < 1.0; };
  findings.need(!cycle.cycle_momentum || (std::ranges::all_of(cycle.cycle_min_mom, below_1) &&
                                          std::ranges::all_of(cycle.cycle_max_mom, below_1)),
                "cycle_min_mom and cycle_max_mom must be below 1");
}

void inspect(const LrRangeTest& test, Findings& findings) {
  findings.need_per_group(test.min_lr, "min_lr", /*may_be_empty=*/false);
  findings.need_at_least(1, test.step_size, "step_size");
  findings.need_at_least(-1, test.last_step, "last_step");
}

}  // namespace

void check(const Options& options, int groups) {
  Findings findings(groups);
  std::visit([&](const auto& chosen) { inspect(chosen, findings); }, options);
  if (findings.problems.empty()) return;
  throw ConfigError({.what = "the learning-rate schedule cannot run:" + findings.problems,
                     .where = "schedule::Options",
                     .fix = "correct the values above"});
}

std::string warning(const Options& options) {
  const auto too_short = [](std::int64_t total, std::int64_t warm) -> std::string {
    if (total >= warm) return {};
    return "the schedule's warm-up of " + std::to_string(warm) +
           " steps is longer than its total of " + std::to_string(total) +
           ", so when warm-up ends the learning rate drops straight to its final value";
  };
  if (const auto* decay = std::get_if<WarmupDecayLr>(&options)) {
    return too_short(decay->total_steps, decay->warmup.num_steps);
  }
  if (const auto* cosine = std::get_if<WarmupCosineLr>(&options)) {
    return too_short(cosine->total_steps, cosine->warmup_steps);
  }
  return {};
}

}  // namespace capstan::schedule
