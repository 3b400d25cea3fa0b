// A JSON value that knows where in its text it stood.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace capstan::json {

// Both count from 1; columns count bytes. 0: the value came from no text.
struct Place {
  int line = 0;
  int column = 0;
  bool operator==(const Place&) const = default;
};

class Value;
struct Member;
using Array = std::vector<Value>;
using Object = std::vector<Member>;  // in the order of the text; no key occurs twice

enum class Kind { null, boolean, integer, real, text, array, object };

// "an object", "a number": for messages.
std::string_view describe(Kind kind);

class Value {
 public:
  // All of these stand in value.cpp, where Member is complete.
  Value();
  explicit Value(bool value);
  explicit Value(std::int64_t value);
  explicit Value(int value);
  explicit Value(double value);
  explicit Value(std::string value);
  explicit Value(std::string_view value);
  explicit Value(const char* value);
  explicit Value(Array value);
  explicit Value(Object value);
  Value(const Value&);
  Value(Value&&) noexcept;
  Value& operator=(const Value&);
  Value& operator=(Value&&) noexcept;
  ~Value();

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is_null() const { return kind() == Kind::null; }

  // A pointer to what the value holds, or null when it holds something else.
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const std::int64_t* integer() const { return std::get_if<std::int64_t>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const std::string* text() const { return std::get_if<std::string>(&data_); }
  const Array* array() const { return std::get_if<Array>(&data_); }
  const Object* object() const { return std::get_if<Object>(&data_); }
  Array* array() { return std::get_if<Array>(&data_); }
  Object* object() { return std::get_if<Object>(&data_); }

  // The member's value, or null when this is no object or has no such key.
  const Value* find(std::string_view key) const;

  // Appends a member; this must be an object without that key. Returns *this, to build in a chain.
  Value& add(std::string key, Value value);

  // Equal content; places and quotes do not matter.
  bool operator==(const Value& other) const;

  Place place;         // of its first character
  bool quoted = true;  // false: a string that stood without quotes, up to the end of its line

 private:
  // The order is that of Kind.
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> data_;
};

struct Member {
  std::string key;
  Value value;
  Place place;  // of the key
  bool operator==(const Member& other) const { return key == other.key && value == other.value; }
};

}  // namespace capstan::json
