// The ranks that share a model's units: groups of the mesh, as the plan names them; and what of a
// unit counts on which of them.
#pragma once

#include <vector>

#include "capstan/comm/mesh_groups.h"
#include "capstan/shard/plan.h"

namespace capstan::shard {

// As UnitAxes, for one rank.
struct UnitGroups {
  comm::Group* cut = nullptr;
  comm::Group* summed = nullptr;  // null: no other rank has the same part
  comm::Group* near = nullptr;    // null: there is no second copy
  comm::Group* tied = nullptr;    // other stages with the same parameters; null: there are none
  // Whether this rank's part is the one of several equal ones that counts: in the norm (see
  // counted_pieces()), in a checkpoint.
  bool counted = true;
};

struct ModelGroups {
  comm::Group& all;               // for what all ranks do together: agree, count, save
  comm::Group& peers;             // those with the same parameters, for other data
  std::vector<UnitGroups> units;  // of the plan
  int stage = 0;                  // of a pipeline, that this rank has
};

// Collective: groups are made where the plan needs them.
ModelGroups model_groups(const Plan& plan, comm::MeshGroups& mesh);

// Of this rank's shard, what it adds to a sum over the gradients of all ranks: together they add
// every element of the model once.
std::vector<layout::SlotPiece> counted_pieces(const Plan& plan, int unit, const UnitGroups& groups);

}  // namespace capstan::shard
