#include "capstan/config/key.h"

#include <fmt/format.h>

namespace capstan::config {
namespace {

Key make_key(std::string name, Type type, std::string fallback) {
  Key key;
  key.name = std::move(name);
  key.type = type;
  key.nullable = fallback == "null";
  key.fallback = std::move(fallback);
  return key;
}

// A default that is text is written without quotes in the tables.
std::string quoted(const std::string& fallback) {
  return fallback.empty() || fallback == "null" ? fallback : fmt::format("\"{}\"", fallback);
}

}  // namespace

Standing Key::standing() const {
  if (feature && !available(*feature)) return idle ? Standing::no_effect : Standing::refused;
  return fixed_standing;
}

std::string Key::standing_reason() const {
  if (!feature || available(*feature)) return reason;
  if (idle)
    return fmt::format("there is nothing that it could act on: {} is not available yet",
                       config::name(*feature));
  return fmt::format("{}: not available yet", config::name(*feature));
}

Key flag(std::string name, bool fallback) {
  return make_key(std::move(name), Type::flag, fallback ? "true" : "false");
}
Key integer(std::string name, std::string fallback) {
  return make_key(std::move(name), Type::integer, std::move(fallback));
}
Key number(std::string name, std::string fallback) {
  return make_key(std::move(name), Type::number, std::move(fallback));
}
Key text(std::string name, std::string fallback) {
  return make_key(std::move(name), Type::text, quoted(fallback));
}
Key choice(std::string name, std::string fallback, std::vector<std::string> choices) {
  Key key = make_key(std::move(name), Type::choice, quoted(fallback));
  key.choices = std::move(choices);
  return key;
}
Key texts(std::string name, std::string fallback) {
  return make_key(std::move(name), Type::texts, std::move(fallback));
}
Key numbers(std::string name, std::string fallback) {
  return make_key(std::move(name), Type::numbers, std::move(fallback));
}
Key number_or_list(std::string name, std::string fallback) {
  return make_key(std::move(name), Type::number_or_list, std::move(fallback));
}
Key any(std::string name, std::string fallback) {
  return make_key(std::move(name), Type::any, std::move(fallback));
}

}  // namespace capstan::config
