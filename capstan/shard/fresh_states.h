// What an update makes of a unit's state while the old one stays valid.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/shard/states.h"
#include "capstan/store/pool.h"

namespace capstan::shard {

// Takes the place of the old state, or is dropped.
struct FreshStates {
  at::Tensor master;
  std::vector<at::Tensor> moments;
  at::Tensor values;  // in the unit's dtype; undefined where that is the master's
};

// Memory for them in `pool`, which is the host's. Zero where no parameter has an element.
FreshStates make_fresh(const UnitStates& states, store::Pool& pool);

}  // namespace capstan::shard
