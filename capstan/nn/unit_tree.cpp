#include "capstan/nn/unit_tree.h"

#include <set>

#include <torch/nn/module.h>

namespace capstan::nn {

std::vector<NamedUnit> find_units(torch::nn::Module& root) {
  std::vector<NamedUnit> found;
  std::set<const UnitBase*> seen;
  const auto add = [&](const std::string& name, torch::nn::Module& module) {
    auto* const unit = dynamic_cast<UnitBase*>(&module);
    if (unit != nullptr && seen.insert(unit).second) found.push_back({name, unit});
  };
  add("", root);
  // Without the root, which named_modules() could name only if a shared_ptr owned it.
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    add(item.key(), *item.value());
  }
  return found;
}

}  // namespace capstan::nn
