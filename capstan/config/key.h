// One key of the configuration: what it takes, what it means, and whether it has an effect here.
// The tables in schema_*.cpp are written with the functions below, one chain per key.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capstan/config/feature.h"

namespace capstan::config {

enum class Type { flag, integer, number, text, choice, texts, numbers, number_or_list, any };

// What becomes of a value that is given.
enum class Standing {
  honoured,   // it changes the run as its meaning says
  no_effect,  // accepted; the reason says why nothing changes
  refused,    // only the default (the feature being off) is accepted
};

struct ValueNeed {
  std::string value;
  Feature feature;
};

struct Key {
  std::string name;
  Type type = Type::any;
  std::string fallback;  // the default as JSON text; empty: none
  bool nullable = false;
  bool required = false;  // an error when its section is there without it
  std::optional<double> least;
  std::optional<double> most;
  bool above_least = false;  // `least` itself is outside
  bool infinite = false;     // infinity is a value
  std::vector<std::string> choices;
  bool any_case = false;
  std::string auto_rule;  // what "auto" stands for; empty: the default
  std::vector<std::string> aliases;
  std::vector<std::string> deprecated;  // accepted with a warning
  std::string meaning;
  std::string consequence;  // what you gain and what you pay
  Standing fixed_standing = Standing::honoured;
  std::string reason;  // of no_effect and refused
  std::optional<Feature> feature;
  bool idle = false;  // without the feature: no effect instead of refused
  std::vector<ValueNeed> value_needs;

  Standing standing() const;
  // Why the standing is not honoured, as a sentence.
  std::string standing_reason() const;

  Key& at_least(double value) { return least = value, *this; }
  Key& above(double value) { return least = value, above_least = true, *this; }
  Key& at_most(double value) { return most = value, *this; }
  Key& or_null() { return nullable = true, *this; }
  Key& or_infinity() { return infinite = true, *this; }
  Key& must() { return required = true, *this; }
  Key& ignoring_case() { return any_case = true, *this; }
  Key& automatic(std::string rule) { return auto_rule = std::move(rule), *this; }
  Key& also(std::vector<std::string> names) { return aliases = std::move(names), *this; }
  Key& formerly(std::vector<std::string> names) { return deprecated = std::move(names), *this; }
  Key& says(std::string text) { return meaning = std::move(text), *this; }
  Key& costs(std::string text) { return consequence = std::move(text), *this; }
  Key& no_effect(std::string why) {
    return fixed_standing = Standing::no_effect, reason = std::move(why), *this;
  }
  Key& refused(std::string why) {
    return fixed_standing = Standing::refused, reason = std::move(why), *this;
  }
  Key& needs(Feature what) { return feature = what, *this; }
  Key& idle_without(Feature what) { return feature = what, idle = true, *this; }
  Key& value_needs_feature(std::string value, Feature what) {
    return value_needs.push_back({std::move(value), what}), *this;
  }
};

// A named group of keys: an object in the file. Sections with equal paths add up.
struct Section {
  std::string path;               // dotted; "" is the top level, a part "*" stands for any name
  std::vector<std::string> when;  // only for these values of "type" beside it, in lower case
  std::string meaning;
  std::vector<Key> keys;
  std::optional<Feature> feature;  // all of it needs this
  std::string gate;                // the flag that turns all of it on; empty: each key for itself
  bool passive = false;            // acts only through another section, which is refused for it
  bool open = false;               // further keys are passed on unchecked
  bool strict = false;             // null only where a key allows it
  std::vector<std::string> aliases;
};

Key flag(std::string name, bool fallback);
Key integer(std::string name, std::string fallback);
Key number(std::string name, std::string fallback);
Key text(std::string name, std::string fallback);
Key choice(std::string name, std::string fallback, std::vector<std::string> choices);
Key texts(std::string name, std::string fallback);
Key numbers(std::string name, std::string fallback);
Key number_or_list(std::string name, std::string fallback);
Key any(std::string name, std::string fallback);

}  // namespace capstan::config
