// The clocks of all ranks, compared over their group.
#pragma once

#include <vector>

#include <c10/core/Device.h>

#include "capstan/comm/group.h"

namespace capstan::engine {

// Collective. By rank: what to add to its times, in microseconds, to have them on rank 0's clock.
// Only rank 0 learns it. `device` is where collectives work.
std::vector<double> clock_offsets(comm::Group& group, c10::Device device);

}  // namespace capstan::engine
