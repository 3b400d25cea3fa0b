#include "capstan/config/json_schema.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "capstan/base/text.h"
#include "capstan/config/convert.h"

namespace capstan::config {
namespace {

json::Value text_array(const std::vector<std::string>& items) {
  json::Array array;
  for (const std::string& item : items) array.push_back(json::Value(item));
  return json::Value(std::move(array));
}

void add_range(json::Value& out, const Key& key) {
  if (key.least) out.add(key.above_least ? "exclusiveMinimum" : "minimum", json::Value(*key.least));
  if (key.most) out.add("maximum", json::Value(*key.most));
}

json::Value ranged(const char* type, const Key& key) {
  json::Value out;
  out.add("type", json::Value(type));
  add_range(out, key);
  return out;
}

json::Value list_of(json::Value items) {
  json::Value out;
  out.add("type", json::Value("array"));
  out.add("items", std::move(items));
  return out;
}

// The alternatives that a key takes, before "auto" and null.
json::Array alternatives(const Key& key) {
  json::Value text;
  text.add("type", json::Value("string"));
  switch (key.type) {
    case Type::flag:
      return {ranged("boolean", key)};
    case Type::integer:
      return {ranged("integer", key)};
    case Type::number:
      return {ranged("number", key)};
    case Type::text:
      return {text};
    case Type::choice:
      // Other spellings in upper or lower case are fine, which an enum cannot say.
      if (!key.any_case) return {json::Value().add("enum", text_array(key.choices))};
      return {json::Value().add("enum", text_array(key.choices)), text};
    case Type::texts:
      return {list_of(text), text};
    case Type::numbers:
      return {list_of(ranged("number", key))};
    case Type::number_or_list:
      return {ranged("number", key), list_of(ranged("number", key))};
    case Type::any:
    case Type::passed:
      break;
  }
  return {};
}

json::Value key_schema(const Section& section, const Key& key) {
  json::Value out;
  std::string description = key.meaning;
  if (!key.consequence.empty()) description += " " + key.consequence;
  const Standing standing = standing_of(section, key);
  if (standing == Standing::no_effect) {
    description += fmt::format(" No effect here: {}.", standing_reason_of(section, key));
  } else if (standing == Standing::refused) {
    description += fmt::format(" Refused: {}.", standing_reason_of(section, key));
  }
  out.add("description", json::Value(description));
  json::Array options = alternatives(key);
  if (!options.empty()) {
    options.push_back(json::Value().add("const", json::Value("auto")));
    if (key.nullable || !section.strict) {
      options.push_back(json::Value().add("type", json::Value("null")));
    }
    out.add("anyOf", json::Value(std::move(options)));
  }
  if (const json::Value standard = key.standard; !standard.is_null()) out.add("default", standard);
  return out;
}

// Direct children of `path`: "a" and "b" of "x.a", "x.b"; "*" too.
std::vector<std::string> child_names(const Schema& schema, const std::string& path) {
  std::vector<std::string> names;
  const std::string prefix = path.empty() ? "" : path + ".";
  for (const Section& section : schema.sections()) {
    if (section.path.empty() || section.path == path || !section.path.starts_with(prefix)) continue;
    const std::string name = split(section.path.substr(prefix.size()), '.').front();
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

json::Value section_schema(const Schema& schema, const std::string& path) {
  json::Value out;
  json::Value properties{json::Object{}};
  std::set<std::string> seen;
  bool open = false;
  std::string description;
  for (const Section& section : schema.sections()) {
    if (section.path != path) continue;
    open = open || section.open;
    if (description.empty()) description = section.meaning;
    for (const Key& key : section.keys) {
      if (key.type == Type::passed) continue;  // only some callers take it
      std::vector<std::string> names = {key.name};
      names.insert(names.end(), key.aliases.begin(), key.aliases.end());
      names.insert(names.end(), key.deprecated.begin(), key.deprecated.end());
      for (const std::string& name : names) {
        if (seen.insert(name).second) properties.add(name, key_schema(section, key));
      }
    }
  }
  json::Value additional(open);
  for (const std::string& name : child_names(schema, path)) {
    json::Value child = section_schema(schema, join_path(path, name));
    if (name == "*") {
      additional = std::move(child);
    } else if (seen.insert(name).second) {
      properties.add(name, std::move(child));
    }
  }
  out.add("description", json::Value(description));
  json::Array types = {json::Value("object"), json::Value("null")};
  if (path == "zero_optimization") types.push_back(json::Value("boolean"));
  out.add("type", path.empty() ? json::Value("object") : json::Value(std::move(types)));
  out.add("properties", std::move(properties));
  out.add("additionalProperties", std::move(additional));
  return out;
}

}  // namespace

json::Value json_schema(const Schema& schema) {
  json::Value out;
  out.add("$schema", json::Value("https://json-schema.org/draft/2020-12/schema"));
  out.add("title", json::Value("Capstan configuration"));
  const json::Value root = section_schema(schema, "");
  for (const json::Member& member : *root.object()) {
    if (member.key != "description") out.add(member.key, member.value);
  }
  return out;
}

}  // namespace capstan::config
