// SLURM's short notations: "node[01-03,7],login" for hosts, "2(x3),1" for counts per host.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace capstan {

// Every host in order. Leading zeros are kept: "n[08-10]" is n08, n09, n10. Throws ConfigError on
// an unclosed bracket or a range that is no range; `where` names the variable it came from.
std::vector<std::string> expand_host_list(std::string_view text, std::string_view where);

// One count per host, in order: "2(x3),1" is 2, 2, 2, 1. Throws ConfigError as above.
std::vector<int> expand_counts(std::string_view text, std::string_view where);

}  // namespace capstan
