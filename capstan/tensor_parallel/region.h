// Where layers are split: the ranks that share them, and how activations lie outside of them.
#pragma once

#include <cstdint>
#include <optional>

#include "capstan/comm/group.h"
#include "capstan/tensor_parallel/cut.h"

namespace capstan::tensor_parallel {

// Ranks: all of the group call every function of this folder in the same order, and run backward
//        over graphs that are alike.
struct Region {
  comm::Group* group = nullptr;  // outlives the graphs of its operations
  // Unset: activations outside of split layers are whole on every rank. Set: each rank has its part
  // of this dimension (sequence parallelism in Megatron's sense); it may count from the end.
  std::optional<std::int64_t> sequence_dim;

  Place place() const { return {group->rank(), group->size()}; }
};

}  // namespace capstan::tensor_parallel
