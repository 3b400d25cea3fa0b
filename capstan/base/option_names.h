// What users call an option. A message names an option by its field ("shard.stage"); a front end
// that reads options from somewhere else, say a file with keys, hands in the names of that place
// beside the values.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace capstan {

struct OptionNames {
  std::map<std::string, std::string, std::less<>> of_fields;  // only those that have another name

  std::string operator()(std::string_view field) const {
    const auto found = of_fields.find(field);
    return found == of_fields.end() ? std::string(field) : found->second;
  }
  bool operator==(const OptionNames&) const = default;
};

}  // namespace capstan
