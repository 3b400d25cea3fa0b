// The group of a test, which outlives every graph, as whoever shares groups takes it.
#pragma once

#include <memory>

#include "capstan/comm/group.h"

namespace capstan::sequence_parallel {

inline std::shared_ptr<comm::Group> shared(comm::Group& group) {
  return {std::shared_ptr<void>(), &group};
}

}  // namespace capstan::sequence_parallel
