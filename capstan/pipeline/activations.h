// How many activations a stage of a pipeline holds at once.
#pragma once

#include <vector>

#include "capstan/pipeline/instruction.h"

namespace capstan::pipeline {

// Per stage, the most chunks of micro-batches between their forward and the end of their backward:
// what their forward saved for backward is in memory so long. 0 where nothing is trained.
std::vector<int> peak_activations(const Schedule& schedule);
// Per part, the most micro-batches; a stage's chunks need not have theirs at the same time.
std::vector<int> peak_activations_by_part(const Schedule& schedule);

}  // namespace capstan::pipeline
