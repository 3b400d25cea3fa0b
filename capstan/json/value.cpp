#include "capstan/json/value.h"

#include <algorithm>

namespace capstan::json {

std::string_view describe(Kind kind) {
  switch (kind) {
    case Kind::null:
      return "null";
    case Kind::boolean:
      return "true or false";
    case Kind::integer:
    case Kind::real:
      return "a number";
    case Kind::text:
      return "a string";
    case Kind::array:
      return "a list";
    case Kind::object:
      break;
  }
  return "an object";
}

const Value* Value::find(std::string_view key) const {
  const Object* members = object();
  if (members == nullptr) return nullptr;
  const auto at = std::find_if(members->begin(), members->end(),
                               [&](const Member& member) { return member.key == key; });
  return at == members->end() ? nullptr : &at->value;
}

Value& Value::add(std::string key, Value value) {
  if (is_null()) data_ = Object{};
  std::get<Object>(data_).push_back({.key = std::move(key), .value = std::move(value)});
  return *this;
}

}  // namespace capstan::json
