#include "tests/support/thread_groups.h"

#include <algorithm>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace capstan {

comm::Group ThreadGroups::make_parts(const std::vector<std::vector<int>>& parts,
                                     const std::string& name) {
  const int number = made_++;
  const auto mine = std::ranges::find_if(
      parts, [this](const auto& part) { return std::ranges::find(part, rank_) != part.end(); });
  const int place = static_cast<int>(std::ranges::find(*mine, rank_) - mine->begin());
  return comm::Group(comm::make_loopback(meetings_.at(*mine, number), place),
                     {.name = name, .timeout = std::chrono::minutes(1)});
}

}  // namespace capstan
