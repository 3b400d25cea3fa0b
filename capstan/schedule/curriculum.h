// A curriculum as a pure function: the number of a step -> how difficult it may be. Nothing is
// stored in a checkpoint but the step, so a run that goes on is as difficult as one that never
// stopped.
#pragma once

#include <cstdint>
#include <string>

#include "capstan/schedule/options.h"

namespace capstan::schedule {

// Note: Deviations
//
// Difficulties are those that users of DeepSpeed's configuration know, number for number. Rounding
// down to a multiple never goes below the first multiple that is not below the minimum (in its
// versions up to 0.19.8 it may reach 0), and lists that fall are refused.

// Throws one ConfigError that lists every value that cannot work. `where`: the section that holds
// them.
void check(const Curriculum& curriculum, const std::string& where = "the curriculum");

// What works but is hardly meant; empty when there is nothing to say.
std::string warning(const Curriculum& curriculum);

// Of a step that is counted from 1. Requires: check() passed, and the growth is not custom.
std::int64_t difficulty_at(const Curriculum& curriculum, std::int64_t step);

}  // namespace capstan::schedule
