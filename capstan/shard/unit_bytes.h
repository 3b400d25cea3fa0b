// What one unit takes on one rank: the arithmetic under every forecast. Pure.
#pragma once

#include <cstdint>

#include "capstan/shard/plan.h"
#include "capstan/shard/settings.h"

namespace capstan::shard {

struct UnitBytes {
  std::int64_t whole = 0;  // gathered parameters
  std::int64_t shard = 0;  // kept parameters
  std::int64_t near = 0;   // our part of their second copy
  std::int64_t local = 0;  // a flat gradient buffer
  std::int64_t wide = 0;   // the same in the dtype of sums: several gradients are added there
  std::int64_t sum = 0;    // our shard of the sum
  std::int64_t converted = 0;
  std::int64_t whole_sum = 0;
  std::int64_t states = 0;
  bool released = false;
  bool resident = false;

  std::int64_t travelling() const { return converted > 0 ? converted : local; }
};

UnitBytes bytes_of(const UnitSpec& unit, const Settings& settings);

}  // namespace capstan::shard
