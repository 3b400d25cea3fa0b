// What is wrong with a document or worth a word, each with its place.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "capstan/base/error.h"
#include "capstan/json/reader.h"

namespace capstan::config {

class Findings {
 public:
  // Starts with what the reader found.
  explicit Findings(const json::Document& document);

  // "ds.json:12:5"; just the source of what came from no text.
  std::string where(json::Place place) const;

  void problem(std::string what, const std::string& path, json::Place place, std::string fix);
  void warning(std::string what, const std::string& path, json::Place place, std::string fix);

  // Whether the reader found something there.
  bool told_at(json::Place place) const { return told_.count(where(place)) > 0; }
  // Whether there are more than anybody reads: the words for the rest may be simple.
  bool is_long() const { return problems.size() + warnings.size() > 100; }

  std::vector<ErrorInfo> problems;
  std::vector<ErrorInfo> warnings;

 private:
  ErrorInfo info(std::string what, const std::string& path, json::Place place,
                 std::string fix) const;

  std::string source_;
  std::set<std::string> told_;
};

// What to do about a key `name` in the section `path`, which knows `names`.
std::string advice_for_unknown(const std::string& name, const std::string& path,
                               const std::vector<std::string>& names);

}  // namespace capstan::config
