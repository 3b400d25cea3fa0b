// What a machine is, for people who look at a run later.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace capstan::monitor {

using Facts = std::vector<std::pair<std::string, std::string>>;  // name, value

std::string host_name();

// Host, system, CPU, cores, memory.
Facts environment();

}  // namespace capstan::monitor
