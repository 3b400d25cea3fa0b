// docs/config.md, made from the schema.
#pragma once

#include <string>

#include "capstan/config/schema.h"

namespace capstan::config {

// Every section as a table: key, type and range, default, "auto", meaning and consequence,
// standing.
std::string markdown(const Schema& schema);

// What works and what is refused: one row per feature, with the keys that ask for it.
std::string feature_table(const Schema& schema);

}  // namespace capstan::config
