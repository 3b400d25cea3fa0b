// What all ranks must have alike, compared once at start: ranks that differ would train different
// models, or wait for each other in vain.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "capstan/comm/group.h"
#include "capstan/engine/options.h"

namespace capstan::engine {

using SharedValues = std::vector<std::pair<std::string, std::string>>;  // what it is, its value

// Those of the options, by the names of C++.
SharedValues shared_values(const Options& options);

// Collective. Throws ConfigError, the same on every rank, that names two ranks, what they have
// differently, and both values.
void check_agreement(comm::Group& group, c10::Device device, const SharedValues& mine);

}  // namespace capstan::engine
