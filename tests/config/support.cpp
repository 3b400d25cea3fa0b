#include "support.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "capstan/base/text.h"
#include "capstan/json/writer.h"

namespace capstan::config {
namespace {

void set(json::Value& root, const std::vector<std::string>& parts, std::size_t at,
         json::Value value) {
  if (root.is_null()) root = json::Value(json::Object{});
  for (json::Member& member : *root.object()) {
    if (member.key != parts[at]) continue;
    if (at + 1 == parts.size()) {
      member.value = std::move(value);
    } else {
      set(member.value, parts, at + 1, std::move(value));
    }
    return;
  }
  json::Value below{json::Object{}};
  if (at + 1 == parts.size()) {
    below = std::move(value);
  } else {
    set(below, parts, at + 1, std::move(value));
  }
  root.add(parts[at], std::move(below));
}

}  // namespace

std::string text_of(const std::vector<Setting>& settings) {
  json::Value root{json::Object{}};
  for (const Setting& setting : settings) {
    set(root, split(setting.path, '.'), 0, json::read(setting.value, "setting"));
  }
  return json::write(root);
}

std::string source_folder() {
  const char* folder = std::getenv("CAPSTAN_SOURCE");
  return folder != nullptr ? folder : CAPSTAN_TEST_SOURCE;
}

std::string read_source_file(const std::string& path) {
  std::ifstream file(source_folder() + "/" + path, std::ios::binary);
  if (!file) return {};
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace capstan::config
