// Every value of a configuration after defaults, "auto" and derivation, each with its origin.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/config/schema.h"
#include "capstan/json/value.h"

namespace capstan::config {

enum class OriginKind { file, fallback, derived, environment, command_line, automatic };

struct Origin {
  OriginKind kind = OriginKind::fallback;
  std::string detail;  // "ds.json:12:5", "64 / (4 x 2)", "WORLD_SIZE"
};

// "ds.json:12:5", "default", "derived: 64 / (4 x 2)": for people.
std::string describe(const Origin& origin);

struct Entry {
  std::string path;
  const Section* section = nullptr;  // in schema(), like `key`; null for a group's wildcard parents
  const Key* key = nullptr;
  json::Value value;  // converted to the key's type; null: not set
  Origin origin;
};

// Typed access asks only for paths and types of the schema; anything else is an InternalError.
class Table {
 public:
  // Replaces the entry of the same path.
  void put(Entry entry);

  const Entry* find(std::string_view path) const;
  const std::vector<Entry>& entries() const { return entries_; }

  bool given(std::string_view path) const;  // the file (or "auto") says something about it
  void note_section(std::string path) { sections_.insert(std::move(path)); }
  // Sections that the file has.
  const std::set<std::string, std::less<>>& sections() const { return sections_; }
  bool has_section(std::string_view path) const { return sections_.count(path) > 0; }
  bool is_null(std::string_view path) const { return at(path).is_null(); }
  bool flag(std::string_view path) const;
  std::int64_t integer(std::string_view path) const;
  double number(std::string_view path) const;
  std::string text(std::string_view path) const;  // empty when null
  std::vector<std::string> texts(std::string_view path) const;
  std::vector<double> numbers(std::string_view path) const;
  std::optional<std::int64_t> maybe_integer(std::string_view path) const;
  // Names directly below a section whose keys stand under "*": the names of parameter groups.
  std::vector<std::string> names_below(std::string_view path) const;

 private:
  const json::Value& at(std::string_view path) const;

  std::set<std::string, std::less<>> sections_;
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

}  // namespace capstan::config
