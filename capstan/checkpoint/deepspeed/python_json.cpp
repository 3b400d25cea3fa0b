#include "capstan/checkpoint/deepspeed/python_json.h"

#include <map>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::checkpoint {
namespace {

[[noreturn]] void refuse_value(const std::string& where, const char* what) {
  throw ConfigError({.what = fmt::format("'{}' {}", where, what),
                     .where = "client_state",
                     .fix = "keep numbers, texts, lists, dicts and tensors there"});
}

std::string key_text(const PyValue& key, const std::string& where) {
  if (key.kind == PyKind::text) return key.text;
  if (key.kind == PyKind::integer) return std::to_string(key.integer);
  refuse_value(where, "has a key that is neither text nor a number");
}

// A key that is given twice has its last value, as in Python.
json::Value object_of(const PyValue& value, const std::string& where) {
  json::Object members;
  std::map<std::string, std::size_t> places;
  for (const auto& [name, each] : value.dict) {
    const std::string key = key_text(*name, where);
    json::Value made = to_json(*each, fmt::format("{}.{}", where, key));
    const auto [place, is_new] = places.emplace(key, members.size());
    if (is_new) {
      members.push_back({.key = key, .value = std::move(made)});
    } else {
      members[place->second].value = std::move(made);
    }
  }
  return json::Value(std::move(members));
}

}  // namespace

json::Value to_json(const PyValue& value, const std::string& where) {
  switch (value.kind) {
    case PyKind::none:
      return {};
    case PyKind::boolean:
      return json::Value(value.boolean);
    case PyKind::integer:
      return json::Value(value.integer);
    case PyKind::real:
      return json::Value(value.real);
    case PyKind::text:
      return json::Value(value.text);
    case PyKind::list:
    case PyKind::tuple: {
      json::Array items;
      items.reserve(value.items.size());
      for (const PyRef& item : value.items) items.push_back(to_json(*item, where));
      return json::Value(std::move(items));
    }
    case PyKind::dict:
      return object_of(value, where);
    case PyKind::tensor:
    case PyKind::object:
      break;
  }
  refuse_value(where, "is not a JSON value");
}

}  // namespace capstan::checkpoint
