// Kills a process that saves without end, at random moments, and looks at what is left.
#pragma once

#include <cstdint>
#include <string>

namespace capstan::checkpoint {

struct KillOutcome {
  int kills = 0;
  int during_a_save = 0;  // an unfinished folder was left
  std::string failure;    // the first kill after which the promise did not hold; empty: none
};

// After every kill a complete checkpoint must be there, at least as new as the last that was
// reported as saved. `seed` makes the moments.
KillOutcome kill_savers(int count, std::uint64_t seed);

}  // namespace capstan::checkpoint
