// A model as a tree of named modules, whatever language they are written in, and the units that
// are found in it. Pure.
#pragma once

#include <string>
#include <vector>

#include "capstan/shard/options.h"
#include "capstan/shard/plan.h"

namespace capstan::shard {

struct ModuleNode {
  std::string name;         // dotted, as in named_modules(); empty for the root
  std::string class_name;   // possibly with its package
  int parent = -1;          // index in the tree; -1 for the root
  bool is_list = false;     // a list, a sequence: what follows each other in it may be blocks
  bool is_called = true;    // false: a container whose modules others call, so that it has no uses
  std::vector<int> params;  // indices of its own parameters, without those of modules inside it
};

// Outer modules come before inner ones. `param_elems`: the size of each parameter.
//
// Units, where `options` name none: modules of one class that follow each other in a list (the
// blocks of a transformer), each with all that is below it. Every other module that has parameters
// of its own is a unit by itself. A tied parameter is in the boundary of each module that has it.
// The root is always a boundary, perhaps of nothing: parameters of others may be read inside it.
std::vector<BoundarySpec> find_boundaries(const std::vector<ModuleNode>& tree,
                                          const std::vector<std::int64_t>& param_elems,
                                          const Options& options);

}  // namespace capstan::shard
