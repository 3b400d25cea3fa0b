// Which dtype every kind of value has in a run: the checks across them, and the table that is
// printed once at start.
#pragma once

#include <string>

#include "capstan/precision/options.h"

namespace capstan::precision {

// How many ranks share the work, for the table's last line.
struct RankCounts {
  int data_parallel = 1;       // ranks that see different data
  int parameter_parallel = 1;  // ranks over which parameters and states are sharded
};

// Throws one ConfigError that lists every value or combination that cannot work.
void check(const Options& options);

// Several lines, without a newline at the end.
std::string dtype_table(const Options& options, RankCounts mesh);

}  // namespace capstan::precision
