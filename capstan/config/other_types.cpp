#include "capstan/config/other_types.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "capstan/base/text.h"

namespace capstan::config {
namespace {

bool same_but_for_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

Converted convert_type(const Key& key, const OtherTypes& others, const json::Value& value) {
  Converted converted = convert(key, value);
  if (converted.problem.empty() || value.text() == nullptr) return converted;
  std::vector<std::string> names = key.open_choices();
  for (const auto& [name, type] : others.classes) {
    if (same_but_for_case(name, *value.text())) return {.value = json::Value(name)};
    names.push_back(name);
  }
  converted.problem = fmt::format("{} is given, but {}, or {}, is expected", show(value),
                                  expects(key), others.in_words);
  converted.fix = fmt::format("write {}, or {}", expects(key), others.in_words);
  const std::string near = nearest_name(*value.text(), names);
  if (!near.empty()) converted.fix = fmt::format("did you mean \"{}\"?", near);
  return converted;
}

}  // namespace capstan::config
