// What the stages of a pipeline share, and how they are told to people.
#pragma once

#include <string>
#include <vector>

#include "capstan/engine/parts.h"
#include "capstan/models/blueprint.h"
#include "capstan/models/model.h"

namespace capstan::cli::train {

// What the first stage and the last share, for the engine of one of them.
std::vector<engine::SharedWeights> shared_weights(models::Model& model, int stages);

// "stage 0: embeddings, blocks 0 to 5; stage 1: ...", for people.
std::string describe_stages(const std::vector<models::BlockRange>& parts);

}  // namespace capstan::cli::train
