// A run of a schedule as text.
#pragma once

#include <cstddef>
#include <string>

#include "capstan/pipeline/simulate.h"

namespace capstan::pipeline {

// One line per stage, time to the right, all lines equally long:
//
//   stage 0  F0 F1 ..... B0--- .. B1---
//   stage 1  .. F0 B0--- F1 B1--- .....
//
// F is a forward, B a backward (for inputs only, where there is a W for weights), with the number
// of the micro-batch and, where stages have several chunks, a letter for the chunk; dots are idle.
// The shortest work is as wide as its text, so every work is.
std::string draw(const Simulation& run);
// How long each line will be, but for the name of the stage.
std::size_t picture_columns(const Simulation& run);

}  // namespace capstan::pipeline
