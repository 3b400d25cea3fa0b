// Which of a model's possible units become units, by the user's options: names, leaf modules, a
// smallest size. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capstan/shard/options.h"

namespace capstan::shard {

// A module that can tell before and after each use.
struct UnitCandidate {
  std::string name;        // dotted, as in named_modules(); empty for the root
  std::string class_name;  // possibly with namespaces
  std::int64_t elems = 0;  // of all parameters below it
};

// Throws ConfigError for a name in the options that matches none.
void check_unit_names(const std::vector<UnitCandidate>& candidates, const Options& options);

// True for those that become units; the parameters of the others belong to the unit around them.
// Candidates come outer before inner. Throws as check_unit_names().
std::vector<bool> choose_units(const std::vector<UnitCandidate>& candidates,
                               const Options& options);

}  // namespace capstan::shard
