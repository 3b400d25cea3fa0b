#include "capstan/cli/report/rows.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::cli {
namespace {

constexpr std::array<std::pair<RowState, std::string_view>, 3> kStateNames = {
    {{RowState::ok, "ok"}, {RowState::missing, "missing"}, {RowState::failed, "failed"}}};

std::string_view state_name(RowState state) {
  return std::ranges::find(kStateNames, state, &std::pair<RowState, std::string_view>::first)
      ->second;
}

std::string_view mark(RowState state) {
  switch (state) {
    case RowState::ok:
      return "OK";
    case RowState::missing:
      return "--";
    case RowState::failed:
      return "FAIL";
  }
  return "?";
}

std::vector<std::string> sections_of(const std::vector<Row>& rows) {
  std::vector<std::string> sections;
  for (const Row& row : rows) {
    if (std::ranges::find(sections, row.section) == sections.end()) sections.push_back(row.section);
  }
  return sections;
}

std::string text_of(const json::Value& row, std::string_view key) {
  const json::Value* found = row.find(key);
  const std::string* text = found == nullptr ? nullptr : found->text();
  return text == nullptr ? std::string() : *text;
}

Row row_from_json(const json::Value& value) {
  const std::string state = text_of(value, "state");
  const auto named =
      std::ranges::find(kStateNames, state, &std::pair<RowState, std::string_view>::second);
  if (named == kStateNames.end()) {
    throw InternalError({.what = fmt::format("a report row has the state \"{}\"", state)});
  }
  Row row{.section = text_of(value, "section"),
          .name = text_of(value, "name"),
          .state = named->first,
          .value = text_of(value, "value"),
          .fix = text_of(value, "fix"),
          .unit = text_of(value, "unit")};
  if (const json::Value* number = value.find("number"); number != nullptr) {
    if (const double* real = number->real()) row.number = *real;
    if (const std::int64_t* integer = number->integer()) {
      row.number = static_cast<double>(*integer);
    }
  }
  const json::Value* basic = value.find("basic");
  row.basic = basic != nullptr && basic->boolean() != nullptr && *basic->boolean();
  return row;
}

}  // namespace

bool basics_work(const std::vector<Row>& rows) {
  return std::ranges::none_of(
      rows, [](const Row& row) { return row.basic && row.state == RowState::failed; });
}

std::string render_text(const std::vector<Row>& rows) {
  std::size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row.name.size());
  std::string text;
  for (const std::string& section : sections_of(rows)) {
    text += (text.empty() ? "" : "\n") + section + "\n";
    for (const Row& row : rows) {
      if (row.section != section) continue;
      text += fmt::format("  {:<4}  {:<{}}  {}\n", mark(row.state), row.name, width, row.value);
      if (!row.fix.empty()) text += fmt::format("        {:<{}}  fix: {}\n", "", width, row.fix);
    }
  }
  return text;
}

json::Value to_json(const std::vector<Row>& rows) {
  json::Array array;
  for (const Row& row : rows) {
    json::Value value{json::Object{}};
    value.add("section", json::Value(row.section))
        .add("name", json::Value(row.name))
        .add("state", json::Value(state_name(row.state)))
        .add("value", json::Value(row.value));
    if (!row.fix.empty()) value.add("fix", json::Value(row.fix));
    if (row.number) value.add("number", json::Value(*row.number));
    if (!row.unit.empty()) value.add("unit", json::Value(row.unit));
    if (row.basic) value.add("basic", json::Value(true));
    array.push_back(std::move(value));
  }
  return json::Value(std::move(array));
}

std::vector<Row> rows_from_json(const json::Value& value) {
  const json::Array* array = value.array();
  if (array == nullptr) throw InternalError({.what = "report rows are no JSON array"});
  std::vector<Row> rows;
  for (const json::Value& row : *array) rows.push_back(row_from_json(row));
  return rows;
}

}  // namespace capstan::cli
