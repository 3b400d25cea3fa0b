#include "capstan/config/shared_values.h"

#include <algorithm>

#include "capstan/json/writer.h"

namespace capstan::config {
namespace {

// The sections of the file that this one describes: itself, or those under "*", of which some have
// keys of others.
std::vector<std::string> paths_of(const Section& section, const Table& table) {
  const std::size_t star = section.path.find(".*");
  if (star == std::string::npos) return {section.path};
  const std::string parent = section.path.substr(0, star);
  std::vector<std::string> paths;
  for (const std::string& name : table.names_below(parent)) {
    paths.push_back(join_path(parent, name));
  }
  return paths;
}

// Of a class of the caller's: whatever the file gives, by name.
SharedValues passed_values(const Section& section, const Table& table) {
  SharedValues values;
  for (const Entry& entry : table.entries()) {
    if (entry.section != &section) continue;
    values.emplace_back(entry.path, json::write(entry.value, {.indent = 0}));
  }
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

SharedValues shared_values(const Table& table) {
  SharedValues values;
  for (const Section& section : schema().sections()) {
    if (section.when == std::vector<std::string>{"*"}) {
      const SharedValues passed = passed_values(section, table);
      values.insert(values.end(), passed.begin(), passed.end());
      continue;
    }
    for (const std::string& path : paths_of(section, table)) {
      for (const Key& key : section.keys) {
        const Entry* entry = table.find(join_path(path, key.name));
        const bool counts = entry != nullptr && entry->key == &key && !key.per_rank &&
                            standing_of(section, key) == Standing::honoured;
        if (counts) values.emplace_back(entry->path, json::write(entry->value, {.indent = 0}));
      }
    }
  }
  return values;
}

}  // namespace capstan::config
