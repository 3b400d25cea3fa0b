// Slices of which several ranks have elements, such as a key head that serves the query heads of
// two ranks: their gradients are equal, and must count once.
#pragma once

#include <c10/core/Device.h>

#include "capstan/comm/group.h"
#include "capstan/shard/plan.h"

namespace capstan::engine {

// Collective. Sets ParamSpec::counted: what several ranks have counts on the first of them.
// `device` is where collectives work.
void count_slices_once(shard::Plan& plan, comm::Group& tensor_ranks, c10::Device device);

}  // namespace capstan::engine
