#include "capstan/config/explain.h"

#include <algorithm>

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

// Names of sections in the order of their first entry; the top level comes first.
std::vector<std::string> sections_in_order(const std::vector<const Entry*>& entries) {
  std::vector<std::string> names = {""};
  for (const Entry* entry : entries) {
    const std::string name = section_of(entry->path);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
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
  std::vector<const Entry*> shown;
  for (const Entry& entry : resolved.table.entries()) {
    if (is_shown(entry)) shown.push_back(&entry);
  }
  std::string text = fmt::format("data-parallel ranks: {} ({})\n", resolved.world_size,
                                 describe(resolved.world_size_origin));
  for (const std::string& section : sections_in_order(shown)) {
    std::vector<const Entry*> inside;
    std::size_t width = 0;
    for (const Entry* entry : shown) {
      if (section_of(entry->path) != section) continue;
      inside.push_back(entry);
      width = std::max(width, entry->path.size() - (section.empty() ? 0 : section.size() + 1));
    }
    text += fmt::format("\n{}\n", section.empty() ? "(top level)" : section);
    for (const Entry* entry : inside) text += line_of(*entry, width);
  }
  return text;
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
