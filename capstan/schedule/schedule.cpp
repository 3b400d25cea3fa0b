#include "capstan/schedule/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "capstan/base/error.h"

namespace capstan::schedule {
namespace {

// Adam divides by 1 - momentum^step, so a momentum that grows after the cycle has to end below 1.
constexpr double kMomentumCeiling = 0.999;

struct At {
  std::int64_t t;
  double base_lr;
  std::size_t group;

  double of(const PerGroup& values) const { return values.size() == 1 ? values[0] : values[group]; }
};

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

// Upstream's warm-up has at least two steps, which users' curves contain.
std::int64_t warmup_length(std::int64_t num_steps) {
  return num_steps == 0 ? 0 : std::max<std::int64_t>(2, num_steps);
}

// How far the warm-up has climbed, 0 to 1; empty once it is over.
std::optional<double> warmup_progress(WarmupType type, std::int64_t num_steps, std::int64_t t) {
  const std::int64_t length = warmup_length(num_steps);
  if (t >= length || length == 0) return std::nullopt;
  if (t < 0) return 0.0;
  if (type == WarmupType::linear) return ratio(t, length);
  return std::log(static_cast<double>(t + 1)) / std::log(static_cast<double>(length));
}

double warmup_lr(const WarmupLr& warmup, const At& at, double after_warmup) {
  const double low = at.of(warmup.min_lr);
  const double high = warmup.max_lr.empty() ? at.base_lr : at.of(warmup.max_lr);
  const double progress =
      warmup_progress(warmup.type, warmup.num_steps, at.t).value_or(after_warmup);
  return low + (high - low) * progress;
}

Rates rates_of(const Constant&, const At& at) { return {.lr = at.base_lr}; }

Rates rates_of(const WarmupLr& warmup, const At& at) { return {.lr = warmup_lr(warmup, at, 1.0)}; }

Rates rates_of(const WarmupDecayLr& decay, const At& at) {
  const std::int64_t falling = decay.total_steps - warmup_length(decay.warmup.num_steps);
  const double left = ratio(decay.total_steps - at.t, std::max<std::int64_t>(1, falling));
  return {.lr = warmup_lr(decay.warmup, at, std::clamp(left, 0.0, 1.0))};
}

Rates rates_of(const WarmupCosineLr& cosine, const At& at) {
  const auto progress = warmup_progress(cosine.type, cosine.warmup_steps, at.t);
  if (progress) {
    const double low = cosine.warmup_min_ratio;
    return {.lr = at.base_lr * (low + (1.0 - low) * *progress)};
  }
  const std::int64_t warm = warmup_length(cosine.warmup_steps);
  const std::int64_t falling = std::max<std::int64_t>(1, cosine.total_steps - warm);
  const double part = std::min(1.0, ratio(at.t - warm + 1, falling));
  const double wave = (1.0 + std::cos(std::numbers::pi * part)) / 2.0;
  const double low = cosine.cos_min_ratio;
  return {.lr = at.base_lr * std::max(0.0, low + (1.0 - low) * wave)};
}

// `done` of `length` steps, as a fraction, rounded down to a stair when there are stairs.
double climb(std::int64_t done, std::int64_t length, std::int64_t stairs) {
  if (stairs == 0) return ratio(done, length);
  return ratio(done * stairs / length, stairs);
}

Rates rates_of(const OneCycle& cycle, const At& at) {
  const std::int64_t rise = cycle.first_steps;
  const std::int64_t fall = cycle.second_steps.value_or(rise);
  const double low_lr = at.of(cycle.cycle_min_lr);
  const double low_mom = at.of(cycle.cycle_min_mom);
  const double high_mom = at.of(cycle.cycle_max_mom);
  const auto rates = [&](double lr, double momentum) {
    return Rates{lr, cycle.cycle_momentum ? std::optional(momentum) : std::nullopt};
  };
  if (at.t < 0) return rates(low_lr, low_mom);  // both low, once, as users know the first update
  if (at.t < rise + fall) {
    const std::int64_t place = at.t + 1;
    const double height = place <= rise ? climb(place, rise, cycle.first_stairs)
                                        : climb(rise + fall - place, fall,
                                                cycle.second_stairs.value_or(cycle.first_stairs));
    return rates(low_lr + (at.of(cycle.cycle_max_lr) - low_lr) * height,
                 high_mom - (high_mom - low_mom) * height);
  }
  const double decays =
      cycle.decay_steps == 0 ? 0.0 : ratio(at.t - rise - fall + 1, cycle.decay_steps);
  const double grown = high_mom * (1.0 + cycle.decay_mom_rate * decays);
  return rates(low_lr / (1.0 + cycle.decay_lr_rate * decays),
               std::min(grown, std::max(kMomentumCeiling, high_mom)));
}

Rates rates_of(const LrRangeTest& test, const At& at) {
  const double grown = ratio(at.t + 1, test.step_size);
  const double intervals = test.staircase ? std::floor(grown) : grown;
  return {.lr = at.of(test.min_lr) * (1.0 + test.step_rate * intervals)};
}

std::int64_t last_step_of(const Constant&) { return -1; }
std::int64_t last_step_of(const WarmupDecayLr& decay) { return decay.warmup.last_step; }
std::int64_t last_step_of(const auto& other) { return other.last_step; }

}  // namespace

Rates rates_at(const Options& options, std::int64_t t, double base_lr, int group) {
  const At at = {.t = t, .base_lr = base_lr, .group = static_cast<std::size_t>(group)};
  return std::visit([&](const auto& chosen) { return rates_of(chosen, at); }, options);
}

Schedule::Schedule(Options options, std::vector<double> base_lrs)
    : options_(std::move(options)), base_lrs_(std::move(base_lrs)) {
  check(options_, static_cast<int>(base_lrs_.size()));
}

Rates Schedule::at(std::int64_t applied_steps, int group) const {
  if (function_) return function_(applied_steps, group);
  const std::int64_t last =
      std::visit([](const auto& chosen) { return last_step_of(chosen); }, options_);
  return rates_at(options_, last + applied_steps, base_lrs_[static_cast<std::size_t>(group)],
                  group);
}

}  // namespace capstan::schedule
