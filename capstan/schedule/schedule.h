// Learning-rate schedules as a pure function: applied optimizer steps -> learning rate and
// momentum. See the note "Indices and deviations" below.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "capstan/schedule/options.h"

namespace capstan::schedule {

// Note: Indices and deviations
//
// A schedule counts applied optimizer steps; a skipped step does not move it. With the usual
// last_step of -1, the update after `applied` updates runs at index t = applied - 1, as users of
// DeepSpeed's configuration know it: their curves, including the two updates at min_lr that a
// warm-up begins with, are kept number for number. Different here, because the known behaviour is
// an error or a trap:
//  - num_steps 0 means no warm-up (instead of an exception): max_lr from the first update on;
//  - WarmupCosineLr starts at warmup_min_ratio (instead of 0) before the first update;
//  - OneCycle never touches beta2 (instead of setting it to 0.99), and moves SGD's momentum too;
//  - OneCycle without a fall reaches its peak; momentum growing after the cycle stays below 1;
//  - a value that cannot work is refused by check(), never replaced by another.

struct Rates {
  double lr = 0.0;
  std::optional<double> momentum;  // set: takes the place of beta1, or of SGD's momentum

  bool operator==(const Rates&) const = default;
};

// A user's own schedule; `group` is the index of a parameter group.
using Function = std::function<Rates(std::int64_t applied_steps, int group)>;

// Throws one ConfigError that lists every value that cannot work with this many parameter groups.
void check(const Options& options, int groups);

// What works but is hardly meant; empty when there is nothing to say.
std::string warning(const Options& options);

// The rates at index t (see the note) of a group whose optimizer was given base_lr.
// Requires: check(options, groups) passed and 0 <= group < groups.
Rates rates_at(const Options& options, std::int64_t t, double base_lr, int group);

// A schedule with the learning rates of the groups it serves. Immutable; share freely.
class Schedule {
 public:
  // base_lrs: each group's own learning rate. Throws as check() does.
  Schedule(Options options, std::vector<double> base_lrs);
  explicit Schedule(Function function) : function_(std::move(function)) {}

  // For the update that follows `applied_steps` applied ones.
  Rates at(std::int64_t applied_steps, int group) const;

 private:
  Options options_;
  std::vector<double> base_lrs_;
  Function function_;  // set: the others are not used
};

}  // namespace capstan::schedule
