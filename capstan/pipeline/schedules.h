// The schedules that exist, by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "capstan/pipeline/instruction.h"
#include "capstan/pipeline/options.h"

namespace capstan::pipeline {

std::string_view to_string(Kind kind);
std::vector<std::string> kind_names();
// Throws ConfigError with the nearest name if there is none like that.
Kind kind_named(std::string_view name);

// Throws ConfigError if the shape is not positive or not one that the kind can have: chunks are for
// `interleaved` and `inference`; with several, `interleaved` takes micro-batches in groups of as
// many as there are stages.
Schedule make_schedule(Kind kind, const Shape& shape);

}  // namespace capstan::pipeline
