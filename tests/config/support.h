// What the tests of this folder share: resolving a text, and finding a problem by its words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "capstan/config/resolve.h"
#include "capstan/json/reader.h"

namespace capstan::config {

inline Outcome check_text(std::string_view text, const Context& context = {}) {
  return check(json::read_document(text, "ds.json"), context);
}

// All problems as one text; empty when the configuration is fine.
inline std::string problems_of(std::string_view text, const Context& context = {}) {
  std::string all;
  for (const ErrorInfo& problem : check_text(text, context).problems) {
    all += problem.what + " | " + problem.where + " | " + problem.fix + "\n";
  }
  return all;
}

inline std::string warnings_of(std::string_view text, const Context& context = {}) {
  std::string all;
  for (const ErrorInfo& warning : check_text(text, context).warnings) {
    all += warning.what + " | " + warning.where + " | " + warning.fix + "\n";
  }
  return all;
}

// Throws when there are problems.
inline Resolved resolve_text(std::string_view text, const Context& context = {}) {
  return resolve(json::read_document(text, "ds.json"), context);
}

inline Context ranks(int world_size) {
  Context context;
  context.world_size = world_size;
  context.world_size_origin = {OriginKind::command_line, "-n " + std::to_string(world_size)};
  return context;
}

struct Setting {
  std::string path;
  std::string value;  // JSON text
};

// The configuration that sets these paths; a later setting of a path replaces an earlier one.
std::string text_of(const std::vector<Setting>& settings);

// The repository, from CAPSTAN_SOURCE or where the test was built.
std::string source_folder();
std::string read_source_file(const std::string& path);  // empty: there is no such file

}  // namespace capstan::config
