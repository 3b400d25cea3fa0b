#include "capstan/config/table.h"

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::config {
namespace {

[[noreturn]] void fail_type(std::string_view path) {
  throw InternalError({.what = fmt::format("\"{}\" is asked for with a wrong type or name", path)});
}

template <typename T>
const T& require(const T* value, std::string_view path) {
  if (value == nullptr) fail_type(path);
  return *value;
}

}  // namespace

std::string describe(const Origin& origin) {
  switch (origin.kind) {
    case OriginKind::file:
      return origin.detail;
    case OriginKind::fallback:
      return origin.detail.empty() ? "default" : fmt::format("default: {}", origin.detail);
    case OriginKind::derived:
      return fmt::format("derived: {}", origin.detail);
    case OriginKind::environment:
      return fmt::format("environment: {}", origin.detail);
    case OriginKind::command_line:
      return fmt::format("command line: {}", origin.detail);
    case OriginKind::automatic:
      break;
  }
  return fmt::format("auto: {}", origin.detail);
}

void Table::put(Entry entry) {
  const auto [at, is_new] = index_.emplace(entry.path, entries_.size());
  if (is_new) {
    entries_.push_back(std::move(entry));
  } else {
    entries_[at->second] = std::move(entry);
  }
}

const Entry* Table::find(std::string_view path) const {
  const auto at = index_.find(path);
  return at == index_.end() ? nullptr : &entries_[at->second];
}

const json::Value& Table::at(std::string_view path) const {
  const Entry* entry = find(path);
  if (entry == nullptr) fail_type(path);
  return entry->value;
}

bool Table::given(std::string_view path) const {
  const Entry* entry = find(path);
  return entry != nullptr && entry->origin.kind != OriginKind::fallback;
}

bool Table::flag(std::string_view path) const {
  const json::Value& value = at(path);
  return value.is_null() ? false : require(value.boolean(), path);
}

std::int64_t Table::integer(std::string_view path) const {
  return require(at(path).integer(), path);
}

double Table::number(std::string_view path) const { return require(at(path).real(), path); }

std::string Table::text(std::string_view path) const {
  const json::Value& value = at(path);
  return value.is_null() ? std::string() : require(value.text(), path);
}

std::vector<std::string> Table::texts(std::string_view path) const {
  std::vector<std::string> items;
  if (is_null(path)) return items;
  for (const json::Value& item : require(at(path).array(), path)) {
    items.push_back(require(item.text(), path));
  }
  return items;
}

std::vector<double> Table::numbers(std::string_view path) const {
  std::vector<double> items;
  if (is_null(path)) return items;
  for (const json::Value& item : require(at(path).array(), path)) {
    items.push_back(require(item.real(), path));
  }
  return items;
}

std::optional<std::int64_t> Table::maybe_integer(std::string_view path) const {
  if (is_null(path)) return {};
  return integer(path);
}

std::vector<std::string> Table::names_below(std::string_view path) const {
  const std::string prefix = fmt::format("{}.", path);
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const Entry& entry : entries_) {
    if (!entry.path.starts_with(prefix)) continue;
    const std::string rest = entry.path.substr(prefix.size());
    const std::string name = rest.substr(0, rest.rfind('.'));
    if (seen.insert(name).second) names.push_back(name);
  }
  return names;
}

}  // namespace capstan::config
