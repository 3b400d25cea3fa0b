// One key of the configuration: what it takes, what it means, and whether it has an effect here.
// The tables in schema_*.cpp are written with the functions below, one chain per key.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/config/feature.h"
#include "capstan/json/value.h"

namespace capstan::config {

// passed: handed on to a class of the caller's; text that is a number becomes one.
enum class Type {
  flag,
  integer,
  number,
  text,
  choice,
  texts,
  numbers,
  number_or_list,
  any,
  passed
};

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
  json::Value standard;  // the default, converted; filled in by Schema
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
  std::vector<Door> doors;                   // who acts on it; empty: everybody
  Standing elsewhere = Standing::no_effect;  // for the others, with a reason
  std::string elsewhere_reason;
  bool per_rank =
      false;  // ranks may have different values: no number and no collective depends on it

  Standing standing() const;
  // Why the standing is not honoured, as a sentence.
  std::string standing_reason() const;

  // The links of a chain. Out of line and without std::string: the tables compile in seconds.
  Key& at_least(double value);
  Key& above(double value);
  Key& at_most(double value);
  Key& or_null();
  Key& or_infinity();
  Key& must();
  Key& ignoring_case();
  Key& automatic(std::string_view rule);
  Key& also(std::string_view name);
  Key& formerly(std::string_view name);
  Key& says(std::string_view text);
  Key& costs(std::string_view text);
  Key& no_effect(std::string_view why);
  Key& refused(std::string_view why);
  Key& needs(Feature what);
  Key& idle_without(Feature what);
  Key& value_needs_feature(std::string_view value, Feature what);
  Key& own_per_rank();
  Key& only_for(std::vector<Door> who, Standing others, std::string_view why);

  bool acts_for(std::optional<Door> door) const;  // unset: for somebody
  // The choices that are not refused for this door.
  std::vector<std::string> open_choices(std::optional<Door> door = {}) const;
};

// Whether a section that has no flag to turn it on is on where it stands in a file.
enum class Presence { harmless, on_when_filled, on };

// A named group of keys: an object in the file. Sections with equal paths add up.
struct Section {
  std::string path;               // dotted; "" is the top level, a part "*" stands for any name
  std::vector<std::string> when;  // only for these values of "type" beside it, in lower case
  std::string meaning;
  std::vector<Key> keys;
  std::optional<Feature> feature;  // all of it needs this
  std::string gate;                // the flag that turns all of it on; empty: each key for itself
  bool passive = false;            // acts only through another section, which is refused for it
  Presence presence = Presence::harmless;
  bool open = false;    // further keys are passed on unchecked
  bool strict = false;  // null only where a key allows it
  std::vector<std::string> aliases;
};

Key flag(std::string_view name, bool fallback);
Key integer(std::string_view name, std::string_view fallback);
Key number(std::string_view name, std::string_view fallback);
Key text(std::string_view name, std::string_view fallback);
Key choice(std::string_view name, std::string_view fallback, std::vector<std::string> choices);
Key texts(std::string_view name, std::string_view fallback);
Key numbers(std::string_view name, std::string_view fallback);
Key number_or_list(std::string_view name, std::string_view fallback);
Key any(std::string_view name, std::string_view fallback);
Key passed(std::string_view name);

}  // namespace capstan::config
