// What a checkpoint says of a model besides its tensors, where each stage of a pipeline knows its
// own.
#pragma once

#include <set>
#include <string>

#include "capstan/checkpoint/training_state.h"
#include "capstan/engine/common.h"
#include "capstan/engine/stored_tensors.h"

namespace capstan::engine {

// Collective. Frozen parameters, buffers, second names and members of parameter groups of all
// stages, in the order of stages. Nothing changes without a pipeline.
void merge_stages(const Common& common, checkpoint::TrainingState& state);

// Collective. Every name under which a checkpoint may hold a tensor of any stage; empty without a
// pipeline.
std::set<std::string> names_of_stages(const Common& common, const StoredNames& names);

}  // namespace capstan::engine
