// One number from every rank.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

#include "capstan/comm/group.h"

namespace capstan::comm {

// Collective: by rank. `device` is where the group's collectives work. A group of one sends
// nothing.
std::vector<std::int64_t> from_all_ranks(Group& group, c10::Device device, std::int64_t mine,
                                         std::string_view label);

}  // namespace capstan::comm
