// config.json of a model as Hugging Face writes it, value by value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "capstan/json/reader.h"

namespace capstan::models {

class ConfigFile {
 public:
  explicit ConfigFile(const std::filesystem::path& path);

  const json::Value* find(const char* key) const;  // null: it is not there, or null there
  std::int64_t size(const char* key) const;        // ConfigError unless it is a number
  // Whether the value is one of `allowed`, or not there.
  bool is_one_of(const char* key, const std::vector<json::Value>& allowed) const;
  [[noreturn]] void refuse(const std::string& what, const std::string& fix) const;

 private:
  std::filesystem::path path_;
  json::Document document_;
};

}  // namespace capstan::models
