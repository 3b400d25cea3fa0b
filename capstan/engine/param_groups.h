// Which hyper-parameters each parameter is updated with.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/optim/options.h"
#include "capstan/shard/plan.h"

namespace capstan::engine {

// '*' in the pattern stands for any text, also none; everything else for itself.
bool matches(std::string_view pattern, std::string_view name);

// The first group with a pattern for `name`; -1: none has one.
int group_of(const std::vector<optim::Group>& groups, std::string_view name);

// hyper[0] is the default group; hyper[i + 1] is options.groups[i].
struct ParamGroups {
  std::vector<optim::HyperParams> hyper;
  std::vector<int> of_param;  // by parameter index
};

// For those who read a checkpoint, by the names that they have there.
std::map<std::string, double> numbers(const optim::HyperParams& hyper);

ParamGroups assign_groups(const optim::Options& options, const shard::Plan& plan);

}  // namespace capstan::engine
