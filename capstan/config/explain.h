// A resolved configuration as text for people: every value with its origin and standing.
#pragma once

#include <string>
#include <vector>

#include "capstan/config/resolve.h"
#include "capstan/json/value.h"
#include "capstan/monitor/options.h"

namespace capstan::config {

// Sections of features that are not available yet appear only when the file has them.
std::string explain(const Resolved& resolved);

// The same as data: [{"path", "value", "origin", "standing", "reason"}], all keys.
json::Value explain_as_json(const Resolved& resolved);

// What explain() shows, for a metrics file, which people pass on: without keys of services.
std::vector<monitor::ConfigValue> shown_values(const Resolved& resolved);

std::string_view name(Standing standing);

}  // namespace capstan::config
