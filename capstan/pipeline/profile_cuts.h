// The partition of a pipeline by measured times and memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "capstan/pipeline/partition.h"

namespace capstan::pipeline {

// As cut_layers() says of `profile`. Of cuts with an equally fast slowest part, the one whose
// fullest part has most room left.
std::vector<std::int64_t> profile_cuts(std::span<const Layer> layers, const Target& target);

}  // namespace capstan::pipeline
