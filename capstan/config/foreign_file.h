// Files of other tools that people take for a configuration.
#pragma once

#include <optional>

#include "capstan/base/error.h"
#include "capstan/json/reader.h"

namespace capstan::config {

// What the file is, and which one to give instead; unset: it may well be a configuration.
std::optional<ErrorInfo> recognise_foreign_file(const json::Document& document);

}  // namespace capstan::config
