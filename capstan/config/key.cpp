#include "capstan/config/key.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace capstan::config {
namespace {

Key make_key(std::string_view name, Type type, std::string_view fallback) {
  Key key;
  key.name = name;
  key.type = type;
  key.nullable = fallback == "null";
  key.fallback = fallback;
  return key;
}

// A default that is text is written without quotes in the tables.
std::string quoted(std::string_view fallback) {
  if (fallback.empty() || fallback == "null") return std::string(fallback);
  return fmt::format("\"{}\"", fallback);
}

}  // namespace

Standing Key::standing() const {
  if (feature && !available(*feature)) return idle ? Standing::no_effect : Standing::refused;
  return fixed_standing;
}

std::string Key::standing_reason() const {
  if (!feature || available(*feature)) return reason;
  if (idle)
    return fmt::format("it only matters for {}, which is not available yet",
                       config::name(*feature));
  return fmt::format("{}: not available yet", config::name(*feature));
}

Key& Key::at_least(double value) {
  least = value;
  return *this;
}
Key& Key::above(double value) {
  least = value;
  above_least = true;
  return *this;
}
Key& Key::at_most(double value) {
  most = value;
  return *this;
}
Key& Key::or_null() {
  nullable = true;
  return *this;
}
Key& Key::or_infinity() {
  infinite = true;
  return *this;
}
Key& Key::must() {
  required = true;
  return *this;
}
Key& Key::ignoring_case() {
  any_case = true;
  return *this;
}
Key& Key::automatic(std::string_view rule) {
  auto_rule = rule;
  return *this;
}
Key& Key::also(std::string_view other) {
  aliases.emplace_back(other);
  return *this;
}
Key& Key::formerly(std::string_view other) {
  deprecated.emplace_back(other);
  return *this;
}
Key& Key::says(std::string_view text) {
  meaning = text;
  return *this;
}
Key& Key::costs(std::string_view text) {
  consequence = text;
  return *this;
}
Key& Key::no_effect(std::string_view why) {
  fixed_standing = Standing::no_effect;
  reason = why;
  return *this;
}
Key& Key::refused(std::string_view why) {
  fixed_standing = Standing::refused;
  reason = why;
  return *this;
}
Key& Key::needs(Feature what) {
  feature = what;
  return *this;
}
Key& Key::idle_without(Feature what) {
  feature = what;
  idle = true;
  return *this;
}
Key& Key::value_needs_feature(std::string_view value, Feature what) {
  value_needs.push_back({std::string(value), what});
  return *this;
}
Key& Key::own_per_rank() {
  per_rank = true;
  return *this;
}
Key& Key::only_for(std::vector<Door> who, Standing others, std::string_view why) {
  doors = std::move(who);
  elsewhere = others;
  elsewhere_reason = why;
  return *this;
}

bool Key::acts_for(std::optional<Door> door) const {
  return doors.empty() || !door || std::find(doors.begin(), doors.end(), *door) != doors.end();
}

std::vector<std::string> Key::open_choices(std::optional<Door> door) const {
  std::vector<std::string> open;
  for (const std::string& choice : choices) {
    const bool later =
        std::any_of(value_needs.begin(), value_needs.end(), [&](const ValueNeed& need) {
          return need.value == choice && !available(need.feature, door);
        });
    if (!later) open.push_back(choice);
  }
  return open;
}

Key flag(std::string_view name, bool fallback) {
  return make_key(name, Type::flag, fallback ? "true" : "false");
}
Key integer(std::string_view name, std::string_view fallback) {
  return make_key(name, Type::integer, fallback);
}
Key number(std::string_view name, std::string_view fallback) {
  return make_key(name, Type::number, fallback);
}
Key text(std::string_view name, std::string_view fallback) {
  return make_key(name, Type::text, quoted(fallback));
}
Key choice(std::string_view name, std::string_view fallback, std::vector<std::string> choices) {
  Key key = make_key(name, Type::choice, quoted(fallback));
  key.choices = std::move(choices);
  return key;
}
Key texts(std::string_view name, std::string_view fallback) {
  return make_key(name, Type::texts, fallback);
}
Key numbers(std::string_view name, std::string_view fallback) {
  return make_key(name, Type::numbers, fallback);
}
Key number_or_list(std::string_view name, std::string_view fallback) {
  return make_key(name, Type::number_or_list, fallback);
}
Key any(std::string_view name, std::string_view fallback) {
  return make_key(name, Type::any, fallback);
}
Key passed(std::string_view name) { return make_key(name, Type::passed, "null"); }

}  // namespace capstan::config
