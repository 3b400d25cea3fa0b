#include "capstan/config/docs.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/config/convert.h"

namespace capstan::config {
namespace {

constexpr const char* kHead = R"(# Configuration

This page is generated: `capstan config docs > docs/config.md`; a test checks that it is current.

Capstan reads the JSON files that DeepSpeed users have. The file may be Hjson: comments (`#`, `//`,
`/* */`), missing and trailing commas, keys without quotes, `'single'` and `'''multi-line'''` strings, no
braces around the root. A doubled key is an error.

- `capstan config check FILE` lists every problem with line, column and fix, and exits with 2 if there is
  one.
- `capstan config explain FILE -n N` prints every resolved value with its origin.
- `capstan config schema` prints a JSON Schema for editors.

Rules for values:

| kind | taken |
|---|---|
| true or false | also 0, 1 and the strings true/false, yes/no, on/off (with a warning) |
| integer | also `5e8`, `2.0`, and strings such as "5" or "1_000" (with a warning) |
| number | also strings such as "1e-3" (with a warning) |
| one of | in the spelling shown; where "any case" is noted, upper and lower case are the same |
| null | as if the key were not there; in sections marked strict only where null is listed |
| "auto" | filled in by Trainer or Accelerate; elsewhere as the column says, else the default |

Standing of a key:

| standing | means |
|---|---|
| honoured | the value changes the run as described; all ranks must have the same one, unless the row says otherwise |
| no effect | accepted, and changes nothing, for the reason given |
| refused | an error unless it has its default; a section that is empty or says `"enabled": false` is fine (but not `zenflow`, which upstream turns on by its mere presence) |

## What works, and what is refused

Data parallelism with ZeRO stages 0 to 3, mixed precision, offload, checkpoints and everything else that is
marked honoured below works. Of what has a name of its own in DeepSpeed (`capstan config features` prints
this table):

)";

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '*') out += '\\';
    out += c;
  }
  return out;
}

std::string takes(const Key& key) {
  std::string text =
      key.type == Type::choice ? fmt::format("{}", fmt::join(key.choices, ", ")) : expects(key);
  if (key.any_case) text += " (any case)";
  if (key.nullable) text += ", or null";
  if (key.infinite) text += ", or Infinity";
  return escape(text);
}

std::string names(const Key& key) {
  std::string text = fmt::format("`{}`", key.name);
  for (const std::string& alias : key.aliases) text += fmt::format("<br>also `{}`", alias);
  for (const std::string& old : key.deprecated) text += fmt::format("<br>deprecated `{}`", old);
  return text;
}

std::string in_words(const std::vector<Door>& doors) {
  std::vector<std::string_view> names;
  for (const Door door : doors) names.push_back(name(door));
  return fmt::format("{}", fmt::join(names, " and "));
}

std::string standing_text(const Section& section, const Key& key) {
  const Standing standing = standing_of(section, key);
  if (standing == Standing::no_effect) return "no effect: " + standing_reason_of(section, key);
  if (standing == Standing::refused) return "refused: " + standing_reason_of(section, key);
  if (!key.doors.empty()) {
    return fmt::format("honoured by {}; elsewhere {}: {}", in_words(key.doors),
                       key.elsewhere == Standing::refused ? "refused" : "no effect",
                       key.elsewhere_reason);
  }
  std::string text = key.per_rank ? "honoured; may differ between ranks" : "honoured";
  for (const ValueNeed& need : key.value_needs) {
    if (!available(need.feature))
      text += fmt::format("; \"{}\" refused: not available yet", need.value);
  }
  return text;
}

std::string row(const Section& section, const Key& key) {
  const std::string fallback = key.fallback.empty() ? (key.required ? "required" : "none")
                                                    : fmt::format("`{}`", key.fallback);
  std::string meaning = key.meaning;
  if (!key.consequence.empty()) meaning += " *" + key.consequence + "*";
  return fmt::format("| {} | {} | {} | {} | {} | {} |\n", names(key), takes(key), escape(fallback),
                     key.auto_rule.empty() ? "default" : escape(key.auto_rule), meaning,
                     escape(standing_text(section, key)));
}

std::string heading(const Section& section) {
  // Several sections share the top level; the first words of their meaning tell them apart.
  if (section.path.empty()) {
    return "Top level: " + section.meaning.substr(0, section.meaning.find_first_of(".:"));
  }
  std::string title = fmt::format("`{}`", section.path);
  if (!section.when.empty()) title += fmt::format(" for {}", fmt::join(section.when, ", "));
  return title;
}

std::string notes(const Section& section) {
  std::string text;
  for (const std::string& alias : section.aliases) text += fmt::format(" Also spelt `{}`.", alias);
  if (section.strict) text += " Strict: null only where it is listed.";
  if (section.open) text += " Further keys are not checked.";
  if (section.feature && !available(*section.feature)) {
    text += fmt::format(" Not available yet ({}).", name(*section.feature));
  } else if (section.feature && only_door(*section.feature)) {
    text += fmt::format(" Elsewhere refused.");
  }
  return text;
}

std::string section_text(const Section& section) {
  std::string text =
      fmt::format("\n## {}\n\n{}{}\n", heading(section), section.meaning, notes(section));
  if (section.keys.empty()) return text;
  text +=
      "\n| key | takes | default | \"auto\" | meaning and *consequence* | standing |\n"
      "|---|---|---|---|---|---|\n";
  for (const Key& key : section.keys) text += row(section, key);
  return text;
}

// What asks for a feature: whole sections, single keys, or one value of a key.
std::vector<std::string> keys_of(const Schema& schema, Feature feature) {
  std::vector<std::string> keys;
  const auto add = [&](std::string key) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
  };
  for (const Section& section : schema.sections()) {
    // A section below one that is listed goes without saying.
    const bool below = section.path.find('.') != std::string::npos &&
                       !section.path.starts_with("zero_optimization.");
    if (section.feature == feature && section.when.empty() && !below) {
      add(fmt::format("`{}`", section.path));
    }
    for (const Key& key : section.keys) {
      const std::string path = join_path(section.path, key.name);
      if (key.feature == feature && !key.idle) add(fmt::format("`{}`", path));
      for (const ValueNeed& need : key.value_needs) {
        if (need.feature == feature) add(fmt::format("`{}: {}`", path, need.value));
      }
    }
  }
  return keys;
}

}  // namespace

std::string feature_table(const Schema& schema) {
  std::string text = "| feature | state | asked for by |\n|---|---|---|\n";
  for (const bool works : {true, false}) {
    for (const Feature feature : all_features()) {
      if (available(feature) != works) continue;
      const std::optional<Door> only = only_door(feature);
      text += fmt::format("| {} | {} | {} |\n", name(feature),
                          !works ? "refused"
                          : only ? fmt::format("works in {}", name(*only))
                                 : "works",
                          fmt::join(keys_of(schema, feature), ", "));
    }
  }
  return text;
}

std::string markdown(const Schema& schema) {
  std::string text = fmt::format("{}{}", kHead, feature_table(schema));
  for (const Section& section : schema.sections()) text += section_text(section);
  return text;
}

}  // namespace capstan::config
