// The units of a model, found in its tree of modules.
#pragma once

#include <string>
#include <vector>

#include "capstan/nn/unit_base.h"

namespace capstan::nn {

struct NamedUnit {
  std::string name;  // as in named_modules(); empty when the root itself is a unit
  UnitBase* unit;    // owned by the tree
};

// In the order of registration, outer units before the units inside them. A module registered
// under several names appears once, under the first.
std::vector<NamedUnit> find_units(torch::nn::Module& root);

}  // namespace capstan::nn
