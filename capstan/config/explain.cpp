#include "capstan/config/explain.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "capstan/json/writer.h"

namespace capstan::config {
namespace {

std::string section_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string value_text(const json::Value& value) {
  if (const double* real = value.real()) return fmt::format("{}", *real);
  return json::write(value, {.indent = 0});
}

bool is_shown(const Entry& entry) {
  return entry.origin.kind != OriginKind::fallback ||
         standing_of(*entry.section, *entry.key) != Standing::refused;
}

std::string line_of(const Entry& entry, std::size_t name_width) {
  const std::string name = entry.path.substr(entry.path.rfind('.') + 1);
  std::string line = fmt::format("  {:<{}}  {:<12}  {}", name, name_width, value_text(entry.value),
                                 describe(entry.origin));
  if (standing_of(*entry.section, *entry.key) == Standing::no_effect) {
    line += fmt::format("  [no effect: {}]", standing_reason_of(*entry.section, *entry.key));
  }
  return line + "\n";
}

struct Part {
  std::string section;
  std::vector<const Entry*> entries;
};

// By section, in the order of their first entry; the top level comes first.
std::vector<Part> parts_of(const Table& table) {
  std::vector<Part> parts = {{}};
  std::map<std::string, std::size_t> index = {{"", 0}};
  for (const Entry& entry : table.entries()) {
    if (!is_shown(entry)) continue;
    const auto [at, is_new] = index.emplace(section_of(entry.path), parts.size());
    if (is_new) parts.push_back({.section = at->first});
    parts[at->second].entries.push_back(&entry);
  }
  return parts;
}

}  // namespace

std::string_view name(Standing standing) {
  switch (standing) {
    case Standing::honoured:
      return "honoured";
    case Standing::no_effect:
      return "no effect";
    case Standing::refused:
      break;
  }
  return "refused";
}

std::string explain(const Resolved& resolved) {
  std::string text = fmt::format("data-parallel ranks: {} ({})\n", resolved.world_size,
                                 describe(resolved.world_size_origin));
  for (const auto& [section, entries] : parts_of(resolved.table)) {
    std::size_t width = 0;
    for (const Entry* entry : entries) {
      width = std::max(width, entry->path.size() - (section.empty() ? 0 : section.size() + 1));
    }
    text += fmt::format("\n{}\n", section.empty() ? "(top level)" : section);
    for (const Entry* entry : entries) text += line_of(*entry, width);
  }
  return text;
}

std::vector<monitor::ConfigValue> shown_values(const Resolved& resolved) {
  std::vector<monitor::ConfigValue> values;
  for (const Entry& entry : resolved.table.entries()) {
    const bool given = entry.origin.kind != OriginKind::fallback;
    const bool acts = standing_of(*entry.section, *entry.key) == Standing::honoured;
    if (!is_shown(entry) || !(given || acts)) continue;
    const bool secret = entry.key->name == "api_key" && !entry.value.is_null();
    values.push_back({.path = entry.path,
                      .value = secret ? "(not shown)" : value_text(entry.value),
                      .origin = describe(entry.origin),
                      .given = given});
  }
  return values;
}

json::Value explain_as_json(const Resolved& resolved) {
  json::Array rows;
  for (const Entry& entry : resolved.table.entries()) {
    const Standing standing = standing_of(*entry.section, *entry.key);
    json::Value row;
    row.add("path", json::Value(entry.path));
    row.add("value", entry.value);
    row.add("origin", json::Value(describe(entry.origin)));
    row.add("standing", json::Value(name(standing)));
    if (standing != Standing::honoured) {
      row.add("reason", json::Value(standing_reason_of(*entry.section, *entry.key)));
    }
    rows.push_back(std::move(row));
  }
  json::Value out;
  out.add("data_parallel_ranks", json::Value(resolved.world_size));
  out.add("data_parallel_ranks_origin", json::Value(describe(resolved.world_size_origin)));
  out.add("values", json::Value(std::move(rows)));
  return out;
}

}  // namespace capstan::config
