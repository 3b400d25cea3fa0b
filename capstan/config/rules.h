// What must hold between keys, and what follows from several of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "capstan/base/error.h"
#include "capstan/config/context.h"
#include "capstan/config/table.h"

namespace capstan::config {

// Values that depend on other values: sizes from the model's hidden size, learning rates of "auto"
// schedules, upstream's special defaults, and what one door does differently.
void derive_values(Table& table, const Context& context);

struct RuleFindings {
  std::vector<ErrorInfo> problems;
  std::vector<ErrorInfo> warnings;
};

// `source` names the file where a value has no place of its own; `ranks` see different data, unset
// where nobody knows yet how many.
RuleFindings check_rules(const Table& table, const std::string& source, std::optional<int> ranks);

}  // namespace capstan::config
