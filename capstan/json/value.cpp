#include "capstan/json/value.h"

#include <algorithm>
#include <utility>

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

Value::Value() = default;
Value::Value(bool value) : data_(value) {}
Value::Value(std::int64_t value) : data_(value) {}
Value::Value(int value) : data_(std::int64_t{value}) {}
Value::Value(double value) : data_(value) {}
Value::Value(std::string value) : data_(std::move(value)) {}
Value::Value(std::string_view value) : data_(std::string(value)) {}
Value::Value(const char* value) : data_(std::string(value)) {}
Value::Value(Array value) : data_(std::move(value)) {}
Value::Value(Object value) : data_(std::move(value)) {}
Value::Value(const Value&) = default;
Value::Value(Value&&) noexcept = default;
Value& Value::operator=(const Value&) = default;
Value& Value::operator=(Value&&) noexcept = default;
Value::~Value() = default;

bool Value::operator==(const Value& other) const { return data_ == other.data_; }

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
