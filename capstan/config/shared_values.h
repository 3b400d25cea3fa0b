// What all ranks of a run must have alike.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "capstan/config/table.h"

namespace capstan::config {

using SharedValues = std::vector<std::pair<std::string, std::string>>;  // dotted key, value as JSON

// Every honoured value that can change a number or a collective, after defaults and derivation. In
// the schema's order, whatever the order of the file: the first place where two ranks' lists differ
// names what to compare.
SharedValues shared_values(const Table& table);

}  // namespace capstan::config
