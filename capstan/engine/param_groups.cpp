#include "capstan/engine/param_groups.h"

#include <algorithm>

namespace capstan::engine {

bool matches(std::string_view pattern, std::string_view name) {
  // Greedy with one point to come back to: the last star takes one character more each time.
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;
  std::size_t star_end = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_end;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<std::ptrdiff_t>(p), pattern.end(),
                     [](char c) { return c == '*'; });
}

int group_of(const std::vector<optim::Group>& groups, std::string_view name) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& patterns = groups[g].patterns;
    const bool any = std::any_of(patterns.begin(), patterns.end(),
                                 [&](const std::string& text) { return matches(text, name); });
    if (any) return static_cast<int>(g);
  }
  return -1;
}

std::map<std::string, double> numbers(const optim::HyperParams& hyper) {
  return {{"lr", hyper.lr},
          {"beta1", hyper.beta1},
          {"beta2", hyper.beta2},
          {"eps", hyper.eps},
          {"weight_decay", hyper.weight_decay}};
}

ParamGroups assign_groups(const optim::Options& options, const shard::Plan& plan) {
  ParamGroups groups;
  groups.hyper.push_back(options.hyper);
  for (const optim::Group& group : options.groups) groups.hyper.push_back(group.hyper);
  for (const shard::ParamSpec& param : plan.params) {
    groups.of_param.push_back(group_of(options.groups, param.name) + 1);
  }
  return groups;
}

}  // namespace capstan::engine
