// Which learning-rate schedule runs, with its parameters. One struct per schedule; the variant
// makes a mixture of two impossible.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace capstan::schedule {

// A value per parameter group; one entry serves all groups.
using PerGroup = std::vector<double>;

// How warm-up climbs: log is steep at first and flat at the end, linear is even.
enum class WarmupType { log, linear };

// The optimizer's own learning rate, unchanged.
struct Constant {
  bool operator==(const Constant&) const = default;
};

// From min_lr to max_lr over num_steps, then max_lr for good.
struct WarmupLr {
  PerGroup min_lr = {0.0};
  PerGroup max_lr;                // empty: each group's own learning rate
  std::int64_t num_steps = 1000;  // 0: no warm-up; longer is safer for large learning rates
  WarmupType type = WarmupType::log;
  std::int64_t last_step = -1;  // resume: the last step already taken; -1 starts afresh
  bool operator==(const WarmupLr&) const = default;
};

// WarmupLr, then a straight line down to min_lr at total_steps.
struct WarmupDecayLr {
  std::int64_t total_steps = 0;  // required: the whole run's optimizer steps
  WarmupLr warmup = {.max_lr = {0.001}};
  bool operator==(const WarmupDecayLr&) const = default;
};

// Warm-up, then half a cosine down; both as ratios of the group's own learning rate.
struct WarmupCosineLr {
  std::int64_t total_steps = 0;  // required
  std::int64_t warmup_steps = 1000;
  double warmup_min_ratio = 0.0;
  double cos_min_ratio = 0.0001;  // the floor at the end of the run
  WarmupType type = WarmupType::log;
  std::int64_t last_step = -1;
  bool operator==(const WarmupCosineLr&) const = default;
};

// One rise and one fall of the learning rate (momentum the other way round), then decay.
struct OneCycle {
  PerGroup cycle_min_lr = {0.0};  // required
  PerGroup cycle_max_lr = {0.0};  // required
  double decay_lr_rate = 0.0;
  std::int64_t first_steps = 2000;            // the rise
  std::optional<std::int64_t> second_steps;   // the fall; unset: as long as the rise
  std::int64_t first_stairs = 0;              // 0: smooth
  std::optional<std::int64_t> second_stairs;  // unset: as many as first_stairs
  std::int64_t decay_steps = 0;               // 0: no decay after the cycle
  bool cycle_momentum = true;                 // also moves beta1; beta2 stays the optimizer's
  PerGroup cycle_min_mom = {0.8};
  PerGroup cycle_max_mom = {0.9};
  double decay_mom_rate = 0.0;
  std::int64_t last_step = -1;
  bool operator==(const OneCycle&) const = default;
};

// Grows the learning rate step by step: a short run that shows where training breaks.
struct LrRangeTest {
  PerGroup min_lr = {0.001};
  std::int64_t step_size = 2000;  // steps per unit of growth
  double step_rate = 1.0;         // growth per step_size, in multiples of min_lr
  bool staircase = false;         // grow in jumps instead of continuously
  std::int64_t last_step = -1;
  bool operator==(const LrRangeTest&) const = default;
};

using Options =
    std::variant<Constant, WarmupLr, WarmupDecayLr, WarmupCosineLr, OneCycle, LrRangeTest>;

}  // namespace capstan::schedule
