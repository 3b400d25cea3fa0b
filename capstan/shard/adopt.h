// A model's parameters as the core takes them over: flat units, and the states beside them.
#pragma once

#include <vector>

#include "capstan/comm/mesh_groups.h"
#include "capstan/shard/ground.h"
#include "capstan/shard/model_view.h"
#include "capstan/shard/states.h"
#include "capstan/shard/unit.h"

namespace capstan::shard {

struct Adopted {
  std::vector<Unit> units;         // in the plan's order
  std::vector<UnitStates> states;  // by unit; empty for frozen ones
};

// Collective: rank 0's values become everybody's. The last unit first: what goes to the host makes
// room for what stays, so that this never needs more than its end and one unit.
Adopted adopt(const ModelView& model, const Ground& ground, const comm::MeshGroups& mesh);

}  // namespace capstan::shard
