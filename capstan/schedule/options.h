// Which schedules run, with their parameters. Of the learning rate one struct per schedule, where
// the variant makes a mixture of two impossible; of a curriculum and of layers that are dropped one
// each.
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

// How difficulty grows: in stairs that are listed, with a root of the step, evenly, or as a
// function of the caller's says.
enum class Growth { fixed_discrete, fixed_root, fixed_linear, custom };

// What becomes of a sequence that is longer than the curriculum allows.
enum class SequenceCut {
  truncate,  // its tail is left out: a step has fewer tokens
  reshape,   // it becomes several short ones: a step has all tokens, but for a last part too short
};

// From easy to hard: what a step may ask of the model, such as the length of its sequences.
struct Curriculum {
  Growth growth = Growth::fixed_linear;
  std::int64_t min = 0;  // where it starts
  std::int64_t max = 0;  // where it ends
  // fixed_discrete: the i-th difficulty holds up to and including step last_steps[i]; the last one
  // for good.
  std::vector<std::int64_t> difficulties;
  std::vector<std::int64_t> last_steps;
  // fixed_root, fixed_linear
  std::int64_t total_steps = 0;  // until the end is reached
  std::int64_t multiple = 1;     // difficulties are rounded down to a multiple of this
  std::int64_t root = 1;         // 2: the square root of the step's share of all
  SequenceCut cut = SequenceCut::truncate;
  bool operator==(const Curriculum&) const = default;
};

// Progressive layer drop: the share of layers that a step keeps falls from 1 to theta.
struct LayerDrop {
  double theta = 0.5;
  double gamma = 0.001;  // how fast
  bool operator==(const LayerDrop&) const = default;
};

}  // namespace capstan::schedule
