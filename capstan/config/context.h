// What a configuration meets besides its own text: who reads it, and what that caller knows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "capstan/config/feature.h"
#include "capstan/config/table.h"
#include "capstan/json/value.h"

namespace capstan::config {

// A value that the caller decides, whatever the file says.
struct Override {
  json::Value value;
  std::string why;  // its origin, for people
};

// A class that the caller has for a section's "type" beside those of the schema.
struct OtherType {
  std::vector<std::string> params;
  std::vector<std::string> required;  // of those
};
struct OtherTypes {
  std::string in_words;  // "a class of torch.optim"
  std::map<std::string, OtherType> classes;
};

struct Context {
  // All ranks that train. Unset: as many data-parallel ones as the three batch sizes imply, else 1.
  std::optional<int> world_size;
  Origin world_size_origin{OriginKind::environment, "the number of ranks"};
  std::optional<std::int64_t> hidden_size;         // of the model, for "auto"
  std::optional<int> stages;                       // of a pipeline that the model is in already
  std::map<std::string, json::Value> auto_values;  // by path: what "auto" stands for
  std::map<std::string, Override> overrides;       // by path
  std::map<std::string, OtherTypes> other_types;   // by section: "optimizer", "scheduler"
  std::optional<Door> door;                        // unset: whoever will use it
  bool trains = false;      // what must be said and is not, or only by "auto", is told
  bool lenient = false;     // unknown keys are warnings
  bool reads_only = false;  // nothing will be trained: features that are not available are warnings
};

}  // namespace capstan::config
