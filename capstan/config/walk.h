// Walks a document along the schema: fills the table with what the file says and lists everything
// that is wrong with it.
#pragma once

#include <vector>

#include "capstan/base/error.h"
#include "capstan/config/context.h"
#include "capstan/config/table.h"
#include "capstan/json/reader.h"

namespace capstan::config {

struct Walked {
  Table table;  // every key of every section that applies
  std::vector<ErrorInfo> problems;
  std::vector<ErrorInfo> warnings;
};

Walked walk(const json::Document& document, const Context& context);

}  // namespace capstan::config
