// The schema as a JSON Schema document (draft 2020-12), for editors.
#pragma once

#include "capstan/config/schema.h"
#include "capstan/json/value.h"

namespace capstan::config {

// Editors complete and check with it; what only `capstan config check` knows (rules between keys,
// values that are understood in other spellings) is not in it.
json::Value json_schema(const Schema& schema);

}  // namespace capstan::config
