// Work of one rank that the others wait for: an error in it must not leave them waiting.
#pragma once

#include <functional>

#include "capstan/engine/common.h"
#include "capstan/engine/phase_clock.h"

namespace capstan::engine {

// Runs `body`. When it throws, the groups are aborted before the error goes on its way, and one
// that says memory is out becomes an OutOfMemory that tells what to try. A rank that is alone may
// go on after a backward; a step may have changed half of the states.
void guarded(const Common& common, Phase phase, const std::function<void()>& body);

}  // namespace capstan::engine
