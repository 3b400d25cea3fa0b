// Walks a document along the schema: fills the table with what the file says and lists everything
// that is wrong with it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "capstan/base/error.h"
#include "capstan/config/table.h"
#include "capstan/json/reader.h"

namespace capstan::config {

struct WalkOptions {
  bool lenient = false;  // unknown keys are warnings
  // What "auto" stands for, by path, where the caller knows better than the default.
  std::map<std::string, json::Value> auto_values;
};

struct Walked {
  Table table;  // every key of every section that applies
  std::vector<ErrorInfo> problems;
  std::vector<ErrorInfo> warnings;
};

Walked walk(const json::Document& document, const WalkOptions& options);

}  // namespace capstan::config
