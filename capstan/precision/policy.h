// Which dtype every kind of value has in a run: the checks across them, and the table that is
// printed once at start.
#pragma once

#include <string>

#include "capstan/precision/options.h"

namespace capstan::precision {

// Throws one ConfigError that lists every value or combination that cannot work.
void check(const Options& options);

// Several lines, each with a newline.
std::string dtype_table(const Options& options);

}  // namespace capstan::precision
