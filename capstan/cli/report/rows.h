// What `capstan report` says, as values, and its two forms: for people and for programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "capstan/json/value.h"

namespace capstan::cli {

enum class RowState {
  ok,
  missing,  // an optional part is not there; `fix` says how to get it, where that makes sense
  failed    // something that should work does not
};

struct Row {
  std::string section;  // "cpu", "memory", ...
  std::string name;
  RowState state = RowState::ok;
  std::string value;
  std::string fix;               // empty where there is nothing to do
  std::optional<double> number;  // the value for programs, in `unit`
  std::string unit;              // "bytes", "GB/s", ...
  bool basic = false;            // failed: nothing can be trained here
};

// False when a basic row failed.
[[nodiscard]] bool basics_work(const std::vector<Row>& rows);

// Sections in order of first appearance; columns aligned; long fixes on a line of their own.
[[nodiscard]] std::string render_text(const std::vector<Row>& rows);

[[nodiscard]] json::Value to_json(const std::vector<Row>& rows);
// The inverse, for rows that another process found. Throws InternalError on anything else.
[[nodiscard]] std::vector<Row> rows_from_json(const json::Value& value);

}  // namespace capstan::cli
