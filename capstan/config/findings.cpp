#include "capstan/config/findings.h"

#include <utility>

#include <fmt/format.h>

#include "capstan/base/text.h"
#include "capstan/config/schema.h"
#include "capstan/json/literal.h"

namespace capstan::config {

Findings::Findings(const json::Document& document)
    : problems(document.problems), source_(document.source) {
  for (const ErrorInfo& problem : problems) told_.insert(problem.where);
}

std::string Findings::where(json::Place place) const {
  if (place.line == 0) return source_;
  return fmt::format("{}:{}:{}", source_, place.line, place.column);
}

ErrorInfo Findings::info(std::string what, const std::string& path, json::Place place,
                         std::string fix) const {
  const std::string at = where(place);
  return {.what = std::move(what),
          .where = path.empty() ? at : fmt::format("{} ({})", at, path),
          .fix = std::move(fix)};
}

void Findings::problem(std::string what, const std::string& path, json::Place place,
                       std::string fix) {
  problems.push_back(info(std::move(what), path, place, std::move(fix)));
}

void Findings::warning(std::string what, const std::string& path, json::Place place,
                       std::string fix) {
  warnings.push_back(info(std::move(what), path, place, std::move(fix)));
}

std::string advice_for_unknown(const std::string& name, const std::string& path,
                               const std::vector<std::string>& names) {
  if (const std::string near = nearest_name(name, names); !near.empty()) {
    return fmt::format("did you mean \"{}\"?", near);
  }
  const std::string shown = json::quote_for_message(name);
  const std::vector<std::string> owners = schema().owners_of(name);
  if (owners.size() == 1 && owners[0] != path) {
    return owners[0].empty()
               ? fmt::format("\"{}\" belongs to the top level: move it out of {}", shown, path)
               : fmt::format("\"{}\" belongs in \"{}\": move it there", shown, owners[0]);
  }
  return fmt::format("remove it; `capstan config schema` lists all keys{}",
                     path.empty() ? "" : fmt::format(" of {}", path));
}

}  // namespace capstan::config
