#include "capstan/config/convert.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/json/literal.h"
#include "capstan/json/reader.h"
#include "capstan/json/writer.h"

namespace capstan::config {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::optional<bool> to_bool(const std::string& text) {
  const std::string word = lower(trim(text));
  for (const char* yes : {"true", "yes", "on", "t", "y", "1"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"false", "no", "off", "f", "n", "0"}) {
    if (word == no) return false;
  }
  return {};
}

// "5", "5.0", " 7 ", "1_000"; for numbers also "1e-3".
std::optional<double> to_number(const std::string& text, bool exponent) {
  std::string digits;
  for (const char c : trim(text)) {
    if (c != '_') digits += c;
  }
  const std::string_view allowed = exponent ? "0123456789+-.eE" : "0123456789-.";
  if (digits.empty() || digits.find_first_not_of(allowed) != std::string::npos) return {};
  double value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc{} || stop != end) return {};
  return value;
}

// A double that is exactly an int64.
std::optional<std::int64_t> to_integer(double value) {
  // 2^63 itself is one too large.
  if (!(value >= -9223372036854775808.0 && value < 9223372036854775808.0)) return {};
  if (value != std::floor(value)) return {};
  return static_cast<std::int64_t>(value);
}

std::string numbers_in_words(const Key& key) {
  if (key.least && key.most) return fmt::format(" from {} to {}", *key.least, *key.most);
  if (key.least)
    return fmt::format(" {} {}", key.above_least ? "above" : "of at least", *key.least);
  if (key.most) return fmt::format(" of at most {}", *key.most);
  return "";
}

bool in_range(const Key& key, double value) {
  if (std::isnan(value) || (std::isinf(value) && !key.infinite)) return false;
  if (key.least && (key.above_least ? value <= *key.least : value < *key.least)) return false;
  return !key.most || value <= *key.most;
}

// A number that is not wrong in kind but in size needs other words.
std::string given(const Key& key, const json::Value& value) {
  const double* real = value.real();
  if (real == nullptr || (key.type != Type::integer && !std::isinf(*real))) return show(value);
  if (std::isinf(*real)) return fmt::format("{}, or a number too large to hold,", show(value));
  return to_integer(std::floor(*real))
             ? show(value)
             : fmt::format("{}, which is too large to hold,", show(value));
}

Converted wrong(const Key& key, const json::Value& value) {
  Converted out;
  out.problem = fmt::format("{} is given, but {} is expected", given(key, value), expects(key));
  out.fix = fmt::format("write {}", expects(key));
  const std::string* text = value.text();
  if (text != nullptr && text->starts_with('[') && text->find('|') != std::string::npos) {
    out.problem =
        fmt::format("{} is how documentation lists the choices, not a value", show(value));
    out.fix = fmt::format("write {}", expects(key));
  } else if (text != nullptr && !value.quoted) {
    out.fix +=
        "; a string without quotes runs to the end of its line, commas and comments included";
  }
  return out;
}

Converted convert_flag(const Key& key, const json::Value& value) {
  Converted out;
  if (const bool* flag = value.boolean()) {
    out.value = json::Value(*flag);
    return out;
  }
  std::optional<bool> flag;
  if (const std::int64_t* number = value.integer(); number && (*number == 0 || *number == 1)) {
    flag = *number == 1;
  } else if (const double* real = value.real(); real && (*real == 0 || *real == 1)) {
    flag = *real == 1;
  } else if (const std::string* text = value.text()) {
    flag = to_bool(*text);
  }
  if (!flag) return wrong(key, value);
  out.value = json::Value(*flag);
  if (value.text() != nullptr) {
    out.remark = fmt::format("{} is a string and was read as {}; write {} without quotes",
                             show(value), *flag, *flag);
  }
  return out;
}

std::optional<double> number_of(const json::Value& value, bool exponent) {
  if (const std::int64_t* integer = value.integer()) return static_cast<double>(*integer);
  if (const double* real = value.real()) return *real;
  if (const std::string* text = value.text()) return to_number(*text, exponent);
  return {};
}

Converted convert_integer(const Key& key, const json::Value& value) {
  std::optional<std::int64_t> integer;
  if (value.integer() != nullptr) {
    integer = *value.integer();
  } else if (const auto number = number_of(value, /*exponent=*/false)) {
    integer = to_integer(*number);
  }
  if (!integer || !in_range(key, static_cast<double>(*integer))) return wrong(key, value);
  Converted out;
  out.value = json::Value(*integer);
  if (value.text() != nullptr) {
    out.remark = fmt::format("{} is a string and was read as {}; write it without quotes",
                             show(value), *integer);
  }
  return out;
}

Converted convert_number(const Key& key, const json::Value& value) {
  const auto number = number_of(value, /*exponent=*/true);
  if (!number || !in_range(key, *number)) return wrong(key, value);
  Converted out;
  out.value = json::Value(*number);
  if (value.text() != nullptr) {
    out.remark = fmt::format("{} is a string and was read as {}; write it without quotes",
                             show(value), *number);
  }
  return out;
}

Converted convert_choice(const Key& key, const json::Value& value) {
  const std::string* text = value.text();
  if (text == nullptr) return wrong(key, value);
  for (const std::string& choice : key.choices) {
    if (*text == choice || (key.any_case && lower(*text) == lower(choice))) {
      return {.value = json::Value(choice)};
    }
  }
  Converted out = wrong(key, value);
  for (const std::string& choice : key.choices) {
    if (lower(*text) == lower(choice))
      out.fix = fmt::format("write \"{}\", in that spelling", choice);
  }
  const std::string near = nearest_name(*text, key.open_choices());
  if (!near.empty() && near != *text) out.fix = fmt::format("did you mean \"{}\"?", near);
  return out;
}

json::Value with_numbers(const json::Value& value) {
  if (const std::string* text = value.text()) {
    const auto number = to_number(*text, /*exponent=*/true);
    return number ? json::Value(*number) : value;
  }
  if (value.array() == nullptr) return value;
  json::Array items;
  for (const json::Value& item : *value.array()) items.push_back(with_numbers(item));
  return json::Value(std::move(items));
}

Converted convert_passed(const json::Value& value) {
  Converted out{.value = with_numbers(value)};
  if (!(out.value == value)) {
    out.remark = fmt::format("{} is a string and was read as a number; write it without quotes",
                             show(value));
  }
  return out;
}

Converted convert_list(const Key& key, const json::Value& value) {
  const bool of_text = key.type == Type::texts;
  const json::Array single = {value};
  const bool wrap = value.array() == nullptr && key.type != Type::numbers;
  const json::Array* items = wrap ? &single : value.array();
  if (items == nullptr) return wrong(key, value);
  json::Array out;
  for (const json::Value& item : *items) {
    if (of_text && item.text() != nullptr) {
      out.push_back(json::Value(*item.text()));
      continue;
    }
    const auto number = of_text ? std::nullopt : number_of(item, /*exponent=*/true);
    if (!number || !in_range(key, *number)) return wrong(key, value);
    out.push_back(json::Value(*number));
  }
  if (key.name == "betas" && out.size() != 2) return wrong(key, value);
  return {.value = json::Value(std::move(out))};
}

}  // namespace

std::string show(const json::Value& value) {
  return json::quote_for_message(json::write(value, {.indent = 0}));
}

std::string expects(const Key& key) {
  switch (key.type) {
    case Type::flag:
      return "true or false";
    case Type::integer:
      return "an integer" + numbers_in_words(key);
    case Type::number:
      return "a number" + numbers_in_words(key);
    case Type::text:
      return "a string in quotes";
    case Type::choice:
      return fmt::format("one of \"{}\"", fmt::join(key.open_choices(), "\", \""));
    case Type::texts:
      return "a list of strings";
    case Type::numbers:
      return (key.name == "betas" ? "a list of two numbers" : "a list of numbers") +
             numbers_in_words(key);
    case Type::number_or_list:
      return "a number, or a list with one per parameter group," + numbers_in_words(key);
    case Type::any:
    case Type::passed:
      break;
  }
  return "any value";
}

Converted convert(const Key& key, const json::Value& value) {
  switch (key.type) {
    case Type::flag:
      return convert_flag(key, value);
    case Type::integer:
      return convert_integer(key, value);
    case Type::number:
      return convert_number(key, value);
    case Type::text:
      return value.text() != nullptr ? Converted{.value = json::Value(*value.text())}
                                     : wrong(key, value);
    case Type::choice:
      return convert_choice(key, value);
    case Type::texts:
    case Type::numbers:
    case Type::number_or_list:
      return convert_list(key, value);
    case Type::passed:
      return convert_passed(value);
    case Type::any:
      break;
  }
  return {.value = value};
}

json::Value default_value(const Key& key) {
  if (key.fallback.empty()) return {};
  const json::Value value = json::read(key.fallback, "default of " + key.name);
  if (value.is_null()) return {};
  const Converted converted = convert(key, value);
  if (!converted.problem.empty()) {
    throw InternalError(
        {.what = fmt::format("default of \"{}\": {}", key.name, converted.problem)});
  }
  return converted.value;
}

}  // namespace capstan::config
