#include "capstan/config/walk.h"

#include <algorithm>
#include <cctype>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/text.h"
#include "capstan/config/convert.h"
#include "capstan/config/findings.h"
#include "capstan/config/other_types.h"
#include "capstan/config/refusal.h"
#include "capstan/json/literal.h"

namespace capstan::config {
namespace {

bool is_auto(const json::Value& value) {
  return value.text() != nullptr && *value.text() == "auto";
}

// How the keys of a section are taken.
enum class Mode {
  live,  // values count; what is not available is refused
  off,   // the section is off, or was refused as a whole: only spelling and types are checked
};

// A section with this type, and its key of this name, stand for all that the caller's classes take.
constexpr const char* kAnyName = "*";

struct KeyMatch {
  const Section* section = nullptr;
  const Key* key = nullptr;
  bool deprecated = false;
};

KeyMatch match_key(const std::vector<const Section*>& sections, const std::string& name) {
  const auto holds = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const Section* section : sections) {
    for (const Key& key : section->keys) {
      if (key.name == name || holds(key.aliases)) return {section, &key, false};
      if (holds(key.deprecated)) return {section, &key, true};
    }
  }
  return {};
}

class Walker {
 public:
  Walker(const json::Document& document, const Context& context)
      : document_(document), context_(context), findings_(document) {}

  Walked run() {
    const json::Object* root = document_.root.object();
    if (document_.blank) {
      findings_.problem("the configuration is empty", "", document_.root.place,
                        "write {} to use the default for everything");
    } else if (root != nullptr) {
      walk_object(*root, "", document_.root.place, Mode::live);
    } else {
      findings_.problem(fmt::format("the configuration is {}, not an object",
                                    json::describe(document_.root.kind())),
                        "", document_.root.place, "put the keys between { and }");
    }
    fill_defaults();
    for (const auto& [path, override] : context_.overrides) put_override(path, override);
    return {std::move(table_), std::move(findings_.problems), std::move(findings_.warnings)};
  }

 private:
  void walk_object(const json::Object& members, const std::string& path, json::Place place,
                   Mode mode) {
    const std::string type = type_beside(path);
    const std::vector<const Section*> sections = schema().at(path, type);
    table_.note_section(path);
    for (const json::Member& member : members) {
      if (const KeyMatch match = find_key(sections, path, member.key); match.key != nullptr) {
        read_key(member, path, match, mode);
      } else {
        read_section_or_unknown(member, path, mode, sections);
      }
    }
    if (members.empty() && !schema().depends_on_type(path)) return;  // as if it were not there
    for (const Section* section : sections) require_keys(*section, path, place);
  }

  // The class of the caller's that the type beside `path` names, else null.
  const OtherType* other_type(const std::string& path) const {
    const std::string section = path.substr(0, path.rfind('.'));
    const auto others = context_.other_types.find(section);
    const Entry* type = table_.find(section + ".type");
    if (others == context_.other_types.end() || type == nullptr) return nullptr;
    const std::string name = table_.text(type->path);
    const std::vector<std::string>& own = type->key->choices;
    if (std::find(own.begin(), own.end(), name) != own.end()) return nullptr;
    const auto found = others->second.classes.find(name);
    return found == others->second.classes.end() ? nullptr : &found->second;
  }

  KeyMatch find_key(const std::vector<const Section*>& sections, const std::string& path,
                    const std::string& name) const {
    const OtherType* other = schema().depends_on_type(path) ? other_type(path) : nullptr;
    if (other == nullptr) return match_key(sections, name);
    const bool known =
        std::find(other->params.begin(), other->params.end(), name) != other->params.end();
    return known ? match_key(sections, kAnyName) : KeyMatch{};
  }

  // Sections with "params" per type look at the type beside them.
  std::string type_beside(const std::string& path) const {
    if (!schema().depends_on_type(path)) return "";
    if (other_type(path) != nullptr) return kAnyName;
    const Entry* entry = table_.find(path.substr(0, path.rfind('.')) + ".type");
    if (entry == nullptr || entry->value.text() == nullptr) return "";
    std::string type = *entry->value.text();
    for (char& c : type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return type;
  }

  void read_section_or_unknown(const json::Member& member, const std::string& path, Mode mode,
                               const std::vector<const Section*>& sections) {
    // A dot in a name must not reach into another section.
    std::string name = schema().section_name(path, member.key);
    std::replace(name.begin(), name.end(), '.', '_');
    const std::string below = join_path(path, name);
    if (schema().has(below)) {
      read_section(member, below, mode);
      return;
    }
    const bool open = std::any_of(sections.begin(), sections.end(),
                                  [](const Section* section) { return section->open; });
    if (!open) unknown_key(member, path);
  }

  void read_section(const json::Member& member, const std::string& path, Mode mode) {
    if (table_.has_section(path)) {
      findings_.problem("the section is given twice, under two spellings", path, member.place,
                        "keep one of the two");
      return;
    }
    const json::Value& value = member.value;
    if (value.is_null() || is_auto(value)) return;
    if (path == "zero_optimization" && value.boolean() != nullptr) {
      read_legacy_zero(member);
      return;
    }
    const json::Object* members = value.object();
    if (members == nullptr) {
      findings_.problem(fmt::format("{} is given, but this is a section", show(value)), path,
                        value.place, fmt::format("write \"{}\": {{ ... }}", member.key));
      return;
    }
    if (schema().depends_on_type(path)) {
      read_early(path.substr(0, path.rfind('.')), "type");
      // Without a readable type, which was said elsewhere, nothing can be said about the
      // parameters.
      if (type_beside(path).empty()) return;
    }
    walk_object(*members, path, value.place, mode_of(member, path, mode));
  }

  // Reads a sibling before its turn: "params" may stand before "type" in the file.
  void read_early(const std::string& path, const std::string& name) {
    const json::Value* section = &document_.root;
    for (const std::string& part : split(path, '.')) {
      section = section == nullptr ? nullptr : section->find(part);
    }
    if (section == nullptr || section->object() == nullptr) return;
    for (const json::Member& member : *section->object()) {
      if (member.key == name)
        read_key(member, path, match_key(schema().at(path, ""), name), Mode::live);
    }
  }

  Mode mode_of(const json::Member& member, const std::string& path, Mode above) {
    if (above == Mode::off) return Mode::off;
    for (const Section* section : schema().at(path, type_beside(path))) {
      if (!refusals_.check_section(*section, path, member)) return Mode::off;
    }
    return Mode::live;
  }

  // "zero_optimization": true, as very old files have it.
  void read_legacy_zero(const json::Member& member) {
    const bool on = *member.value.boolean();
    findings_.warning(fmt::format("\"zero_optimization\": {} is an old form", on),
                      "zero_optimization", member.place,
                      fmt::format("write \"zero_optimization\": {{\"stage\": {}}}", on ? 1 : 0));
    table_.note_section("zero_optimization");
    const KeyMatch match = match_key(schema().at("zero_optimization", ""), "stage");
    put("zero_optimization.stage", match, json::Value(on ? 1 : 0), file_origin(member.value.place));
  }

  void read_key(const json::Member& member, const std::string& path, const KeyMatch& match,
                Mode mode) {
    const Key& key = *match.key;
    const std::string full = join_path(path, key.name == kAnyName ? member.key : key.name);
    if (const auto [at, is_new] = seen_.emplace(full, &member); !is_new) {
      if (at->second == &member) return;  // read early
      findings_.problem(
          fmt::format("\"{}\" and \"{}\" are the same key", at->second->key, member.key), full,
          member.place, "keep one of the two");
      return;
    }
    if (match.deprecated) {
      findings_.warning(fmt::format("\"{}\" is deprecated", member.key), full, member.place,
                        fmt::format("write \"{}\"", key.name));
    }
    const json::Value& value = member.value;
    if (is_auto(value) && !(key.type == Type::choice && holds_auto(key))) {
      put_auto(full, match, value.place);
    } else if (value.is_null()) {
      read_null(full, match, value);
    } else {
      read_value(full, match, value, mode);
    }
  }

  void read_null(const std::string& full, const KeyMatch& match, const json::Value& value) {
    const Key& key = *match.key;
    if (key.required) return;  // as if it were not there, which is said elsewhere
    if (match.section->strict && !key.nullable && !findings_.told_at(value.place)) {
      findings_.problem(fmt::format("null is given, but {} is expected", expects(key)), full,
                        value.place,
                        fmt::format("remove the key to get its default {}", show(key.standard)));
    }
    put(full, match, key.nullable ? json::Value() : key.standard, file_origin(value.place));
  }

  static bool holds_auto(const Key& key) {
    return std::find(key.choices.begin(), key.choices.end(), "auto") != key.choices.end();
  }

  void read_value(const std::string& full, const KeyMatch& match, const json::Value& value,
                  Mode mode) {
    const Converted converted = convert_here(full, *match.key, value);
    if (!converted.problem.empty()) {
      findings_.problem(fmt::format("Invalid {}: {}", match.key->name, converted.problem), full,
                        value.place, converted.fix);
      put(full, match, match.key->standard, file_origin(value.place));
      return;
    }
    if (!converted.remark.empty()) findings_.warning(converted.remark, full, value.place, "");
    if (mode == Mode::live && !(converted.value == match.key->standard)) {
      json::Value given = converted.value;
      given.place = value.place;
      refusals_.check(*match.section, *match.key, full, given);
    }
    put(full, match, converted.value, file_origin(value.place));
  }

  Converted convert_here(const std::string& full, const Key& key, const json::Value& value) const {
    const auto others = context_.other_types.find(full.substr(0, full.rfind('.')));
    if (key.name != "type" || others == context_.other_types.end()) return convert(key, value);
    return convert_type(key, others->second, value);
  }

  void put_auto(const std::string& full, const KeyMatch& match, json::Place place) {
    const auto known = context_.auto_values.find(full);
    const std::string where = file_origin(place).detail;
    if (known != context_.auto_values.end()) {
      const Converted converted = convert(*match.key, known->second);
      if (!converted.problem.empty())
        findings_.problem(converted.problem, full, place, converted.fix);
      put(full, match, converted.value,
          {.kind = OriginKind::automatic,
           .detail = fmt::format("filled in by the caller ({})", where)});
      return;
    }
    if (match.key->required && context_.trains) {
      findings_.problem(
          fmt::format("\"{}\" is \"auto\", but nothing has filled it in", match.key->name), full,
          place,
          fmt::format("write {}; only the Trainer and Accelerate fill in \"auto\"",
                      expects(*match.key)));
    }
    const std::string rule =
        match.key->auto_rule.empty() ? std::string("the default") : match.key->auto_rule;
    put(full, match, match.key->standard,
        {.kind = OriginKind::automatic, .detail = fmt::format("{} ({})", rule, where)});
  }

  void put(const std::string& full, const KeyMatch& match, json::Value value, Origin origin) {
    table_.put({.path = full,
                .section = match.section,
                .key = match.key,
                .value = std::move(value),
                .origin = std::move(origin)});
  }

  void put_override(const std::string& path, const Override& override) {
    Entry entry = *table_.find(path);
    entry.value = convert(*entry.key, override.value).value;
    entry.origin = {OriginKind::derived, override.why};
    table_.put(std::move(entry));
  }

  void require_keys(const Section& section, const std::string& path, json::Place place) {
    const auto require = [&](const std::string& name, const std::string& what) {
      if (table_.find(join_path(path, name)) != nullptr) return;
      findings_.problem(fmt::format("\"{}\" is missing", name), path, place,
                        fmt::format("add \"{}\": {}", name, what));
    };
    for (const Key& key : section.keys) {
      if (key.required) require(key.name, expects(key));
    }
    const OtherType* other = section.when.empty() ? nullptr : other_type(path);
    if (other == nullptr) return;
    for (const std::string& name : other->required) require(name, "its value");
  }

  // Of the section around one that the file does not have.
  json::Place place_around(const std::string& path) const {
    const json::Value* section = document_.root.find(path.substr(0, path.find('.')));
    return section == nullptr ? document_.root.place : section->place;
  }

  // Keys that the file does not name, in the order of the schema. Sections under "*" have no names
  // beyond those of the file.
  void fill_defaults() {
    for (const Section& section : schema().sections()) {
      if (section.path.find('*') != std::string::npos) continue;
      if (!section.when.empty()) {
        const std::string type = type_beside(section.path);
        if (std::find(section.when.begin(), section.when.end(), type) == section.when.end())
          continue;
      }
      if (!section.when.empty() && !table_.has_section(section.path))
        require_keys(section, section.path, place_around(section.path));
      fill_section(section, section.path);
    }
    for (const std::string& path : table_.sections()) {
      for (const Section* section : schema().at(path, "")) {
        if (section->path.find('*') != std::string::npos) fill_section(*section, path);
      }
    }
  }

  void fill_section(const Section& section, const std::string& path) {
    for (const Key& key : section.keys) {
      const std::string full = join_path(path, key.name);
      if (key.name == kAnyName || table_.find(full) != nullptr) continue;
      put(full, {&section, &key, false}, key.standard, {});
    }
  }

  void unknown_key(const json::Member& member, const std::string& path) {
    const std::string shown = json::quote_for_message(member.key);
    const std::string what = fmt::format("unknown key \"{}\"", shown);
    const std::string fix =
        findings_.is_long() ? "remove it" : advice_for_unknown(member.key, path, names_below(path));
    const std::string where = member.place.line == 0 ? join_path(path, shown) : path;
    if (context_.lenient) {
      findings_.warning(what + " is ignored", where, member.place, fix);
    } else {
      findings_.problem(what, where, member.place, fix);
    }
  }

  std::vector<std::string> names_below(const std::string& path) const {
    const OtherType* other = schema().depends_on_type(path) ? other_type(path) : nullptr;
    return other != nullptr ? other->params : schema().names_below(path, type_beside(path));
  }

  Origin file_origin(json::Place place) const {
    return {.kind = OriginKind::file, .detail = findings_.where(place)};
  }

  const json::Document& document_;
  const Context& context_;
  Findings findings_;
  Refusals refusals_{context_, findings_};
  Table table_;
  std::map<std::string, const json::Member*> seen_;  // keys that the file has
};

}  // namespace

Walked walk(const json::Document& document, const Context& context) {
  return Walker(document, context).run();
}

}  // namespace capstan::config
