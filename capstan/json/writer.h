// Writes a value as JSON text.
#pragma once

#include <string>

#include "capstan/json/value.h"

namespace capstan::json {

struct WriteOptions {
  int indent = 2;  // spaces per level; 0: all on one line
};

// Reading the text gives an equal value: doubles are written with as many digits as they need,
// infinity and NaN as Python's reader (and ours) takes them.
std::string write(const Value& value, const WriteOptions& options = {});

}  // namespace capstan::json
