#include "capstan/config/schema.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "capstan/config/convert.h"

namespace capstan::config {
namespace {

// Part by part, without a copy: this runs for every key of a file.
bool path_matches(std::string_view pattern, std::string_view path) {
  while (true) {
    const std::size_t want = pattern.find('.');
    const std::size_t have = path.find('.');
    const std::string_view part = pattern.substr(0, want);
    if (part != "*" && part != path.substr(0, have)) return false;
    if (want == std::string_view::npos || have == std::string_view::npos) return want == have;
    pattern.remove_prefix(want + 1);
    path.remove_prefix(have + 1);
  }
}

// Of "a.b.c": the parent "a.b" and the name "c".
std::pair<std::string, std::string> split_last(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

void append_sections(std::vector<Section>& all, std::vector<Section> part) {
  all.insert(all.end(), std::make_move_iterator(part.begin()), std::make_move_iterator(part.end()));
}

std::vector<Section> all_sections() {
  std::vector<Section> all;
  append_sections(all, batch_sections());
  append_sections(all, optimizer_sections());
  append_sections(all, scheduler_sections());
  append_sections(all, precision_sections());
  append_sections(all, zero_sections());
  append_sections(all, offload_sections());
  append_sections(all, capstan_sections());
  append_sections(all, diagnostics_sections());
  append_sections(all, checkpoint_sections());
  append_sections(all, profiling_sections());
  append_sections(all, tuning_sections());
  append_sections(all, data_sections());
  append_sections(all, compression_sections());
  append_sections(all, parallel_sections());
  return all;
}

}  // namespace

std::string join_path(std::string_view path, std::string_view name) {
  std::string joined(path);
  if (!joined.empty()) joined += '.';
  return joined += name;
}

Standing standing_of(const Section& section, const Key& key) {
  if (section.feature && !available(*section.feature)) return Standing::refused;
  return key.standing();
}

std::string standing_reason_of(const Section& section, const Key& key) {
  if (section.feature && !available(*section.feature)) {
    return fmt::format("{}: not available yet", name(*section.feature));
  }
  return key.standing_reason();
}

Schema::Schema(std::vector<Section> sections) : sections_(std::move(sections)) {
  for (Section& section : sections_) {
    for (Key& key : section.keys) key.standard = default_value(key);
  }
}

std::vector<const Section*> Schema::at(std::string_view path, std::string_view type) const {
  std::vector<const Section*> found;
  for (const Section& section : sections_) {
    if (!path_matches(section.path, path)) continue;
    const bool fits = section.when.empty() || std::find(section.when.begin(), section.when.end(),
                                                        type) != section.when.end();
    if (fits) found.push_back(&section);
  }
  return found;
}

bool Schema::has(std::string_view path) const {
  return std::any_of(sections_.begin(), sections_.end(), [&](const Section& section) {
    return !section.path.empty() && path_matches(section.path, path);
  });
}

bool Schema::depends_on_type(std::string_view path) const {
  return std::any_of(sections_.begin(), sections_.end(), [&](const Section& section) {
    return section.path == path && !section.when.empty();
  });
}

std::string Schema::section_name(std::string_view parent, std::string_view name) const {
  for (const Section& section : sections_) {
    const auto& names = section.aliases;
    if (names.empty()) continue;
    const auto [above, last] = split_last(section.path);
    if (above == parent && std::find(names.begin(), names.end(), name) != names.end()) return last;
  }
  return std::string(name);
}

std::vector<std::string> Schema::names_below(std::string_view path, std::string_view type) const {
  std::vector<std::string> names;
  for (const Section* section : at(path, type)) {
    for (const Key& key : section->keys) {
      names.push_back(key.name);
      names.insert(names.end(), key.aliases.begin(), key.aliases.end());
    }
  }
  for (const Section& section : sections_) {
    const auto [parent, name] = split_last(section.path);
    if (!section.path.empty() && name != "*" && path_matches(parent, path)) names.push_back(name);
  }
  return names;
}

std::vector<std::string> Schema::owners_of(std::string_view name) const {
  std::vector<std::string> owners;
  const auto add = [&](const std::string& owner) {
    if (std::find(owners.begin(), owners.end(), owner) == owners.end()) owners.push_back(owner);
  };
  for (const Section& section : sections_) {
    if (section.path.find('*') != std::string::npos) continue;
    const auto [parent, last] = split_last(section.path);
    if (!section.path.empty() && last == name) add(parent);
    const bool has_key = std::any_of(section.keys.begin(), section.keys.end(),
                                     [&](const Key& key) { return key.name == name; });
    if (has_key) add(section.path);
  }
  return owners;
}

const Schema& schema() {
  static const Schema kSchema(all_sections());
  return kSchema;
}

}  // namespace capstan::config
