#include "capstan/config/walk.h"

#include <algorithm>
#include <cctype>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/text.h"
#include "capstan/config/convert.h"
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
  Walker(const json::Document& document, const WalkOptions& options)
      : document_(document), options_(options) {}

  Walked run() {
    out_.problems = document_.problems;
    if (const json::Object* root = document_.root.object()) {
      walk_object(*root, "", Mode::live);
    } else {
      problem(fmt::format("the configuration is {}, not an object",
                          json::describe(document_.root.kind())),
              "", document_.root.place, "put the keys between { and }");
    }
    fill_defaults();
    return std::move(out_);
  }

 private:
  void walk_object(const json::Object& members, const std::string& path, Mode mode) {
    const std::string type = type_beside(path);
    const std::vector<const Section*> sections = schema().at(path, type);
    present_.insert(path);
    for (const json::Member& member : members) {
      if (const KeyMatch match = match_key(sections, member.key); match.key != nullptr) {
        read_key(member, path, match, mode);
      } else {
        read_section_or_unknown(member, path, mode, sections);
      }
    }
    if (members.empty() && !schema().depends_on_type(path)) return;  // as if it were not there
    for (const Section* section : sections) require_keys(*section, path);
  }

  // Sections with "params" per type look at the type beside them.
  std::string type_beside(const std::string& path) const {
    if (!schema().depends_on_type(path)) return "";
    const Entry* entry = out_.table.find(path.substr(0, path.rfind('.')) + ".type");
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
    if (present_.count(path) > 0) {
      problem("the section is given twice, under two spellings", path, member.place,
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
      problem(fmt::format("{} is given, but this is a section", show(value)), path, value.place,
              fmt::format("write \"{}\": {{ ... }}", member.key));
      return;
    }
    if (schema().depends_on_type(path)) {
      read_early(path.substr(0, path.rfind('.')), "type");
      // Without a readable type, which was said elsewhere, nothing can be said about the
      // parameters.
      if (type_beside(path).empty()) return;
    }
    walk_object(*members, path, mode_of(member, path, mode));
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
      if (!section->feature || available(*section->feature)) continue;
      if (section->passive || !section->when.empty()) return Mode::off;  // the type was refused
      if (section->gate.empty() || member.value.object()->empty()) continue;
      if (gate_is_on(*section, member.value)) {
        const json::Value* gate = member.value.find(section->gate);
        problem(fmt::format("{}: not available yet", config::name(*section->feature)), path,
                gate != nullptr ? gate->place : member.place,
                fmt::format("remove the section, or set \"{}\": false", section->gate));
      }
      return Mode::off;
    }
    return Mode::live;
  }

  static bool gate_is_on(const Section& section, const json::Value& value) {
    const KeyMatch match = match_key({&section}, section.gate);
    const json::Value* given = value.find(section.gate);
    const bool unsaid = given == nullptr || given->is_null() || is_auto(*given);
    const json::Value value_or_default =
        unsaid ? match.key->standard : convert(*match.key, *given).value;
    return value_or_default.boolean() != nullptr && *value_or_default.boolean();
  }

  // "zero_optimization": true, as very old files have it.
  void read_legacy_zero(const json::Member& member) {
    const bool on = *member.value.boolean();
    warning(fmt::format("\"zero_optimization\": {} is an old form", on), "zero_optimization",
            member.place,
            fmt::format("write \"zero_optimization\": {{\"stage\": {}}}", on ? 1 : 0));
    present_.insert("zero_optimization");
    const KeyMatch match = match_key(schema().at("zero_optimization", ""), "stage");
    put("zero_optimization.stage", match, json::Value(on ? 1 : 0), file_origin(member.value.place));
  }

  void read_key(const json::Member& member, const std::string& path, const KeyMatch& match,
                Mode mode) {
    const Key& key = *match.key;
    const std::string full = join_path(path, key.name);
    if (const auto [at, is_new] = seen_.emplace(full, &member); !is_new) {
      if (at->second == &member) return;  // read early
      problem(fmt::format("\"{}\" and \"{}\" are the same key", at->second->key, member.key), full,
              member.place, "keep one of the two");
      return;
    }
    if (match.deprecated) {
      warning(fmt::format("\"{}\" is deprecated", member.key), full, member.place,
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
    if (match.section->strict && !key.nullable && !placeholder_at(value.place)) {
      problem(fmt::format("null is given, but {} is expected", expects(key)), full, value.place,
              fmt::format("remove the key to get its default {}", show(key.standard)));
    }
    put(full, match, key.nullable ? json::Value() : key.standard, file_origin(value.place));
  }

  static bool holds_auto(const Key& key) {
    return std::find(key.choices.begin(), key.choices.end(), "auto") != key.choices.end();
  }

  // Whether the reader put null where a placeholder stood, and has already said so.
  bool placeholder_at(json::Place place) const {
    const std::string where = fmt::format("{}:{}:{}", document_.source, place.line, place.column);
    return std::any_of(document_.problems.begin(), document_.problems.end(),
                       [&](const ErrorInfo& problem) { return problem.where == where; });
  }

  void read_value(const std::string& full, const KeyMatch& match, const json::Value& value,
                  Mode mode) {
    const Converted converted = convert(*match.key, value);
    if (!converted.problem.empty()) {
      problem(converted.problem, full, value.place, converted.fix);
      put(full, match, match.key->standard, file_origin(value.place));
      return;
    }
    if (!converted.remark.empty()) warning(converted.remark, full, value.place, "");
    if (mode == Mode::live) refuse_unavailable(full, match, converted.value, value.place);
    put(full, match, converted.value, file_origin(value.place));
  }

  void refuse_unavailable(const std::string& full, const KeyMatch& match, const json::Value& value,
                          json::Place place) {
    if (standing_of(*match.section, *match.key) == Standing::refused &&
        value != match.key->standard) {
      problem(fmt::format("{} is refused: {}", show(value),
                          standing_reason_of(*match.section, *match.key)),
              full, place,
              fmt::format("remove the key, or set it to {}", show(match.key->standard)));
    }
    for (const ValueNeed& need : match.key->value_needs) {
      if (value.text() != nullptr && *value.text() == need.value && !available(need.feature)) {
        problem(fmt::format("\"{}\" is refused: {}: not available yet", need.value,
                            config::name(need.feature)),
                full, place, other_choices(*match.key));
      }
    }
  }

  static std::string other_choices(const Key& key) {
    std::vector<std::string> rest;
    for (const std::string& choice : key.choices) {
      const bool later = std::any_of(
          key.value_needs.begin(), key.value_needs.end(),
          [&](const ValueNeed& need) { return need.value == choice && !available(need.feature); });
      if (!later) rest.push_back(choice);
    }
    return fmt::format("use \"{}\"", fmt::join(rest, "\" or \""));
  }

  void put_auto(const std::string& full, const KeyMatch& match, json::Place place) {
    const auto known = options_.auto_values.find(full);
    const std::string where = file_origin(place).detail;
    if (known != options_.auto_values.end()) {
      const Converted converted = convert(*match.key, known->second);
      if (!converted.problem.empty()) problem(converted.problem, full, place, converted.fix);
      put(full, match, converted.value,
          {.kind = OriginKind::automatic,
           .detail = fmt::format("filled in by the caller ({})", where)});
      return;
    }
    const std::string rule =
        match.key->auto_rule.empty() ? std::string("the default") : match.key->auto_rule;
    put(full, match, match.key->standard,
        {.kind = OriginKind::automatic, .detail = fmt::format("{} ({})", rule, where)});
  }

  void put(const std::string& full, const KeyMatch& match, json::Value value, Origin origin) {
    out_.table.put({.path = full,
                    .section = match.section,
                    .key = match.key,
                    .value = std::move(value),
                    .origin = std::move(origin)});
  }

  void require_keys(const Section& section, const std::string& path) {
    for (const Key& key : section.keys) {
      const std::string full = join_path(path, key.name);
      if (!key.required || out_.table.find(full) != nullptr) continue;
      problem(fmt::format("\"{}\" is missing", key.name), path, section_place(path),
              fmt::format("add \"{}\": {}", key.name, expects(key)));
    }
  }

  json::Place section_place(const std::string& path) const {
    const json::Value* value = &document_.root;
    for (const std::string& part : split(path, '.')) {
      const json::Value* next = value->find(part);
      if (next == nullptr) break;
      value = next;
    }
    return value->place;
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
      if (!section.when.empty() && present_.count(section.path) == 0)
        require_keys(section, section.path);
      fill_section(section, section.path);
    }
    for (const std::string& path : present_) {
      for (const Section* section : schema().at(path, "")) {
        if (section->path.find('*') != std::string::npos) fill_section(*section, path);
      }
    }
  }

  void fill_section(const Section& section, const std::string& path) {
    for (const Key& key : section.keys) {
      const std::string full = join_path(path, key.name);
      if (out_.table.find(full) != nullptr) continue;
      put(full, {&section, &key, false}, key.standard, {});
    }
  }

  void unknown_key(const json::Member& member, const std::string& path) {
    const std::string shown = json::quote_for_message(member.key);
    std::string fix;
    const std::vector<std::string> owners = schema().owners_of(member.key);
    const std::string near = nearest_name(member.key, schema().names_below(path));
    if (!near.empty()) {
      fix = fmt::format("did you mean \"{}\"?", near);
    } else if (owners.size() == 1) {
      fix = owners[0].empty()
                ? fmt::format("\"{}\" belongs to the top level: move it out of {}", shown, path)
                : fmt::format("\"{}\" belongs into \"{}\": move it there", shown, owners[0]);
    } else {
      fix = fmt::format("remove it; `capstan config schema` lists all keys{}",
                        path.empty() ? "" : fmt::format(" of {}", path));
    }
    const std::string what = fmt::format("unknown key \"{}\"", shown);
    if (options_.lenient) {
      warning(what + " is ignored", path, member.place, fix);
    } else {
      problem(what, path, member.place, fix);
    }
  }

  Origin file_origin(json::Place place) const {
    return {.kind = OriginKind::file,
            .detail = fmt::format("{}:{}:{}", document_.source, place.line, place.column)};
  }

  ErrorInfo info(std::string what, const std::string& path, json::Place place,
                 std::string fix) const {
    std::string where = file_origin(place).detail;
    if (!path.empty()) where += fmt::format(" ({})", path);
    return {.what = std::move(what), .where = std::move(where), .fix = std::move(fix)};
  }
  void problem(std::string what, const std::string& path, json::Place place, std::string fix) {
    out_.problems.push_back(info(std::move(what), path, place, std::move(fix)));
  }
  void warning(std::string what, const std::string& path, json::Place place, std::string fix) {
    out_.warnings.push_back(info(std::move(what), path, place, std::move(fix)));
  }

  const json::Document& document_;
  const WalkOptions& options_;
  Walked out_;
  std::set<std::string> present_;                    // sections that the file has
  std::map<std::string, const json::Member*> seen_;  // keys that the file has
};

}  // namespace

Walked walk(const json::Document& document, const WalkOptions& options) {
  return Walker(document, options).run();
}

}  // namespace capstan::config
