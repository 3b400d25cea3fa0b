// docs/config.md, made from the schema.
#pragma once

#include <string>

#include "capstan/config/schema.h"

namespace capstan::config {

// Every section as a table: key, type and range, default, "auto", meaning and consequence,
// standing.
std::string markdown(const Schema& schema);

}  // namespace capstan::config
