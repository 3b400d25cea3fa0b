// An engine for a model that is only evaluated: parameters as the options place them, no optimizer.
#pragma once

#include "capstan/engine/engine.h"

namespace capstan::engine {

// Takes out of `options` what only training needs, and gives `parts` an updater that refuses to
// step.
void make_forward_only(Options& options, Parts& parts);

}  // namespace capstan::engine
