#include "capstan/shard/choose_units.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::shard {
namespace {

bool is_below(std::string_view name, std::string_view outer) {
  if (outer.empty()) return !name.empty();
  return name.size() > outer.size() && name.starts_with(outer) && name[outer.size()] == '.';
}

// "Block" and "models::Block" are both the class capstan::models::Block; libtorch's implementation
// classes end in Impl.
bool is_class(std::string_view class_name, std::string_view wanted) {
  const auto ends_with = [class_name](std::string_view tail) {
    if (!class_name.ends_with(tail)) return false;
    const std::string_view rest = class_name.substr(0, class_name.size() - tail.size());
    return rest.empty() || rest.ends_with("::") || rest.ends_with('.');
  };
  return ends_with(wanted) || ends_with(std::string(wanted) + "Impl");
}

template <typename Matches>
bool any_of(const std::vector<std::string>& wanted, Matches matches) {
  return std::any_of(wanted.begin(), wanted.end(), matches);
}

bool is_leaf(const UnitCandidate& candidate, const Options& options) {
  const LeafModules& leaf = options.leaf_modules;
  return candidate.elems <= options.unit_granularity_elems ||
         any_of(leaf.names, [&](const auto& name) { return candidate.name == name; }) ||
         any_of(leaf.name_suffixes,
                [&](const auto& suffix) { return candidate.name.ends_with(suffix); }) ||
         any_of(leaf.classes,
                [&](const auto& name) { return is_class(candidate.class_name, name); });
}

void check_names(const std::vector<UnitCandidate>& candidates,
                 const std::vector<std::string>& wanted, const std::string& option) {
  std::vector<std::string> known;
  known.reserve(candidates.size());
  for (const UnitCandidate& candidate : candidates) known.push_back(candidate.name);
  for (const std::string& name : wanted) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = nearest_name(name, known);
    throw ConfigError(
        {.what = fmt::format("'{}' cannot be a unit: the model has no such module", name),
         .where = option,
         .fix = nearest.empty() ? "use a name from named_modules(); in C++, of a module that is a "
                                  "capstan::nn::Unit"
                                : fmt::format("did you mean '{}'?", nearest)});
  }
}

}  // namespace

void check_unit_names(const std::vector<UnitCandidate>& candidates, const Options& options) {
  check_names(candidates, options.unit_names, options.names("shard.unit_names"));
  check_names(candidates, options.leaf_modules.names, options.names("shard.leaf_modules.names"));
}

std::vector<bool> choose_units(const std::vector<UnitCandidate>& candidates,
                               const Options& options) {
  check_unit_names(candidates, options);
  std::vector<bool> chosen;
  std::vector<std::string> leaves;
  for (const UnitCandidate& candidate : candidates) {
    const bool inside_leaf =
        any_of(leaves, [&](const auto& leaf) { return is_below(candidate.name, leaf); });
    const bool named =
        options.unit_names.empty() ||
        any_of(options.unit_names, [&](const auto& name) { return candidate.name == name; });
    chosen.push_back(named && !inside_leaf);
    if (is_leaf(candidate, options)) leaves.push_back(candidate.name);
  }
  return chosen;
}

}  // namespace capstan::shard
