// Turns a value of the file into what a key takes: what can be understood safely is accepted.
#pragma once

#include <string>

#include "capstan/config/key.h"
#include "capstan/json/value.h"

namespace capstan::config {

struct Converted {
  json::Value
      value;  // flag: boolean; integer: integer; number: real; lists: array of reals or texts
  std::string problem;  // empty: the value is fine
  std::string fix;      // of the problem
  std::string remark;   // accepted, but worth a warning
};

// `value` is neither null nor "auto".
Converted convert(const Key& key, const json::Value& value);

// The key's default, converted; null where there is none.
json::Value default_value(const Key& key);

// What a key takes, in words: "an integer from 0 to 3".
std::string expects(const Key& key);

// A value as it would stand in a file, shortened for a message.
std::string show(const json::Value& value);

}  // namespace capstan::config
