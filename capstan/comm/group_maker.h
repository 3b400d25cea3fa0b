// Who can divide the ranks of a job into groups.
#pragma once

#include <string>
#include <vector>

#include "capstan/comm/group.h"

namespace capstan::comm {

// Ranks: all of them call with the same arguments in the same order.
class GroupMaker {
 public:
  virtual ~GroupMaker() = default;
  // `parts` holds every rank once; gives the group of the part that this rank is in.
  virtual Group make_parts(const std::vector<std::vector<int>>& parts, const std::string& name) = 0;
};

}  // namespace capstan::comm
