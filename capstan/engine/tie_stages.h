// Weights that several stages of a pipeline share, in a model as sharding sees it. Pure.
#pragma once

#include <vector>

#include "capstan/engine/parts.h"
#include "capstan/shard/model_view.h"

namespace capstan::engine {

// Marks the parameters that stages share. Throws ConfigError for a name or a stage that is not
// there.
void tie_stages(shard::ModelView& view, const std::vector<SharedWeights>& ties, int stages);

}  // namespace capstan::engine
