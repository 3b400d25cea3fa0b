#include "capstan/shard/module_tree.h"

#include <map>
#include <set>
#include <utility>

#include "capstan/shard/choose_units.h"

namespace capstan::shard {
namespace {

// Parameters of each module and all below it.
std::vector<std::set<int>> params_with_inner(const std::vector<ModuleNode>& tree) {
  std::vector<std::set<int>> below(tree.size());
  for (std::size_t i = tree.size(); i-- > 0;) {
    below[i].insert(tree[i].params.begin(), tree[i].params.end());
    if (tree[i].parent < 0) continue;
    below[static_cast<std::size_t>(tree[i].parent)].insert(below[i].begin(), below[i].end());
  }
  return below;
}

// The outermost modules of which a list holds several of one class.
std::vector<std::string> repeated_blocks(const std::vector<ModuleNode>& tree,
                                         const std::vector<std::set<int>>& below) {
  std::map<std::pair<int, std::string>, int> count;
  for (const ModuleNode& node : tree) ++count[{node.parent, node.class_name}];
  std::vector<std::string> names;
  std::vector<bool> inside(tree.size(), false);
  for (std::size_t i = 0; i < tree.size(); ++i) {
    const ModuleNode& node = tree[i];
    if (node.parent < 0) continue;
    const auto parent = static_cast<std::size_t>(node.parent);
    inside[i] = inside[parent];
    if (inside[i] || !tree[parent].is_list || !node.is_called || below[i].empty()) continue;
    if (count[{node.parent, node.class_name}] < 2) continue;
    inside[i] = true;
    names.push_back(node.name);
  }
  return names;
}

}  // namespace

std::vector<BoundarySpec> find_boundaries(const std::vector<ModuleNode>& tree,
                                          const std::vector<std::int64_t>& param_elems,
                                          const Options& options) {
  const std::vector<std::set<int>> below = params_with_inner(tree);
  std::vector<UnitCandidate> candidates;
  for (std::size_t i = 0; i < tree.size(); ++i) {
    std::int64_t elems = 0;
    for (const int param : below[i]) elems += param_elems[static_cast<std::size_t>(param)];
    candidates.push_back({tree[i].name, tree[i].class_name, elems});
  }
  check_unit_names(candidates, options);  // as they were given: units become leaves below
  // A block is a leaf: nothing inside it is a unit of its own.
  Options all = options;
  const std::vector<std::string> blocks =
      options.unit_names.empty() ? repeated_blocks(tree, below) : options.unit_names;
  all.unit_names.clear();
  all.leaf_modules.names.insert(all.leaf_modules.names.end(), blocks.begin(), blocks.end());
  const std::vector<bool> chosen = choose_units(candidates, all);

  std::vector<std::set<int>> members(tree.size());
  std::vector<std::size_t> owner(tree.size());  // the innermost chosen module around each
  for (std::size_t i = 0; i < tree.size(); ++i) {
    owner[i] = chosen[i] ? i : owner[static_cast<std::size_t>(tree[i].parent)];
    members[owner[i]].insert(tree[i].params.begin(), tree[i].params.end());
  }
  std::vector<BoundarySpec> boundaries;
  for (std::size_t i = 0; i < tree.size(); ++i) {
    if (members[i].empty() && i > 0) continue;
    boundaries.push_back({tree[i].name, {members[i].begin(), members[i].end()}});
  }
  return boundaries;
}

}  // namespace capstan::shard
