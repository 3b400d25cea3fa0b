// What DeepSpeed's own object of one section holds for keys that are not given, where that is not
// what the schema says. Programs make such objects (DeepSpeedZeroConfig(), DeepSpeedBF16Config())
// and compare their fields; a run has the schema's values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "capstan/json/value.h"

namespace capstan::config {

// `stage`: what the section zero_optimization says of it.
std::map<std::string, json::Value> lone_defaults(std::string_view section, std::int64_t stage);

}  // namespace capstan::config
