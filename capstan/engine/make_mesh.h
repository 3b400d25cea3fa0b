// The ranks of an engine as a grid.
#pragma once

#include "capstan/engine/options.h"
#include "capstan/layout/mesh.h"

namespace capstan::engine {

// Whether a second copy of the parameters is kept: among fewer ranks than share the first.
bool keeps_near(const shard::Options& options, int ranks);

// Throws ConfigError where they do not form groups as large as asked for; it names the option of
// the axis that does not fit.
layout::Mesh make_mesh(const Options& options, int ranks);

}  // namespace capstan::engine
