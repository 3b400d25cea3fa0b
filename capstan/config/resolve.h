// From a document to the options of the engine: the front door of this folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "capstan/base/error.h"
#include "capstan/config/context.h"
#include "capstan/config/table.h"
#include "capstan/data/options.h"
#include "capstan/engine/options.h"
#include "capstan/json/reader.h"
#include "capstan/schedule/options.h"
#include "capstan/tune/options.h"

namespace capstan::config {

struct Resolved {
  engine::Options engine;
  data::Options data;
  tune::Options tune;
  std::optional<schedule::Curriculum> curriculum;
  std::optional<schedule::LayerDrop> layer_drop;
  Table table;         // every value with its origin
  int world_size = 1;  // ranks that see different data
  Origin world_size_origin;
  std::vector<ErrorInfo> warnings;
};

struct Outcome {
  std::optional<Resolved> resolved;  // set unless there are problems
  std::vector<ErrorInfo> problems;
  std::vector<ErrorInfo> warnings;
};

// Everything that is wrong, at once. Throws nothing for whatever the document holds.
Outcome check(const json::Document& document, const Context& context);

// Throws one ConfigError with all problems.
Resolved resolve(const json::Document& document, const Context& context);

// Several problems as one error: each with its place and fix.
ErrorInfo join_problems(const std::vector<ErrorInfo>& problems, const std::string& source);

}  // namespace capstan::config
