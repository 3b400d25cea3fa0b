// How a user says that layers of a model are split: tensor_parallel.partition_config.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capstan/base/error.h"
#include "capstan/json/value.h"

namespace capstan::config {

enum class PartitionKind { column, row, skip };

struct PartitionRule {
  std::vector<std::string> patterns;  // regular expressions of a parameter's name, from its start
  PartitionKind kind = PartitionKind::skip;
  std::vector<std::string> model_types;  // empty: all
  std::int64_t blocks = 1;               // matrices side by side in one weight; each of them is cut
  bool gather_output = false;            // of a column
  bool sum_gradients = false;            // of what is whole but meets parts of activations
};

struct PartitionRules {
  std::vector<PartitionRule> rules;  // the first that matches counts
  bool others_by_default = true;     // layers without a rule: as without any rules; else whole
  bool strict = false;               // a linear layer without a rule is an error
};

// Null: none. What is wrong goes to `problems`, each with its own place within the value.
PartitionRules read_partition_rules(const json::Value& value, std::vector<ErrorInfo>& problems);

}  // namespace capstan::config
