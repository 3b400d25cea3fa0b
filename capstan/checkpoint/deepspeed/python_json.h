// Python values of a pickle as JSON, for what is the client's.
#pragma once

#include <string>

#include "capstan/checkpoint/deepspeed/python_value.h"
#include "capstan/json/value.h"

namespace capstan::checkpoint {

// `where` names the value in messages. Throws ConfigError for what JSON has no word for.
json::Value to_json(const PyValue& value, const std::string& where);

}  // namespace capstan::checkpoint
