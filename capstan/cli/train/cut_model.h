// A model cut into the stages of a pipeline.
#pragma once

#include <vector>

#include "capstan/engine/parts.h"
#include "capstan/models/blueprint.h"
#include "capstan/models/model.h"

namespace capstan::cli::train {

// The blocks of each stage: the slowest pass through a stage is as fast as it can be. Throws
// ConfigError where the model cannot be cut into so many.
std::vector<models::BlockRange> cut_model(const models::Blueprint& model, int stages,
                                          std::int64_t tokens);

// What the first stage and the last share, for the engine of one of them.
std::vector<engine::SharedWeights> shared_weights(models::Model& model, int stages);

// "stage 0: embeddings, blocks 0 to 5; stage 1: ...", for people.
std::string describe_stages(const std::vector<models::BlockRange>& parts);

}  // namespace capstan::cli::train
