#include "capstan/models/config_file.h"

#include <algorithm>

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::models {

ConfigFile::ConfigFile(const std::filesystem::path& path)
    : path_(path), document_(json::read_file(path)) {}

const json::Value* ConfigFile::find(const char* key) const {
  const json::Value* const value = document_.root.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::int64_t ConfigFile::size(const char* key) const {
  const json::Value* const value = find(key);
  if (value != nullptr && value->integer() != nullptr) return *value->integer();
  refuse(fmt::format("\"{}\" is not a number there", key), "write the size of the model there");
}

bool ConfigFile::is_one_of(const char* key, const std::vector<json::Value>& allowed) const {
  const json::Value* const value = find(key);
  return value == nullptr || std::find(allowed.begin(), allowed.end(), *value) != allowed.end();
}

void ConfigFile::refuse(const std::string& what, const std::string& fix) const {
  throw ConfigError({.what = what, .where = path_.string(), .fix = fix});
}

}  // namespace capstan::models
