// The kinds of models there are, by the names of their sizes and by config.json. A new kind is one
// more row here and in make_model.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "capstan/models/blueprint.h"
#include "capstan/models/config_file.h"

namespace capstan::models {

// Of published sizes and of small ones to try things with.
std::vector<std::string> model_names();
// Throws ConfigError that names the nearest.
std::shared_ptr<const Blueprint> blueprint_by_name(const std::string& name);

// By "model_type". Throws ConfigError that says what of the file we cannot do.
std::shared_ptr<const Blueprint> read_blueprint(const ConfigFile& config);
// The titles of what it reads, for messages: "GPT-2".
std::string model_titles();

}  // namespace capstan::models
