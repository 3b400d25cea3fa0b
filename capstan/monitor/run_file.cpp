#include "capstan/monitor/run_file.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::monitor {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
// More numbers are no metrics: each line has a place for each of them.
constexpr std::size_t kMostColumns = 500;

bool is_number(const nlohmann::json& value) { return value.is_number() || value.is_boolean(); }

double number_of(const nlohmann::json& value) {
  return value.is_boolean() ? static_cast<double>(value.get<bool>()) : value.get<double>();
}

}  // namespace

bool RunFile::read_more(bool ended) {
  std::ifstream file(path_, std::ios::binary);
  std::error_code error;
  if (!file || std::filesystem::is_directory(path_, error)) {
    throw IoError({.what = fmt::format("cannot read the metrics: {}",
                                       file ? "it is a folder" : std::strerror(errno)),
                   .where = path_.string(),
                   .fix = "give the file that was named for the metrics of a run"});
  }
  file.seekg(offset_);
  const std::int64_t lines_before = lines_;
  for (std::string text; std::getline(file, text);) {
    const bool whole = !file.eof();
    if (!whole && !ended) break;
    offset_ += std::ssize(text) + (whole ? 1 : 0);
    take_line(text);
  }
  return lines_ > lines_before;
}

void RunFile::take_line(const std::string& text) {
  ++lines_;
  if (trim(text).empty()) return;
  const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto found = [&](const char* name) {
    return line.is_object() && line.contains(name) ? &line[name] : nullptr;
  };
  const nlohmann::json* const run = found("run");
  const nlohmann::json* const step = found("step");
  if (run != nullptr && run->is_object()) {
    run_ = run->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return;
  }
  if (step == nullptr || !step->is_number_integer()) {
    if (damaged_++ == 0) first_damaged_ = lines_;
    return;
  }
  const auto number = step->get<std::int64_t>();
  if (const nlohmann::json* loss = found("validation_loss")) {
    if (loss->is_number()) validation_[number] = loss->get<double>();
    return;
  }
  forget_after(number);
  Row row(columns_.size(), kNone);
  const auto put = [&](const std::string& name, const nlohmann::json& value) {
    const std::size_t at = column_at(name);
    if (at >= kMostColumns) return;
    row.resize(std::max(row.size(), at + 1), kNone);
    row[at] = number_of(value);
  };
  for (const auto& [name, value] : line.items()) {
    if (is_number(value)) put(name, value);
    if (!value.is_object()) continue;
    for (const auto& [inner, part] : value.items()) {
      if (is_number(part)) put(name + "." + inner, part);
    }
  }
  steps_[number] = std::move(row);
}

std::size_t RunFile::column_at(const std::string& name) {
  const auto at = index_.find(name);
  if (at != index_.end()) return at->second;
  if (columns_.size() >= kMostColumns) return kMostColumns;
  index_.emplace(name, columns_.size());
  columns_.push_back(name);
  return columns_.size() - 1;
}

void RunFile::forget_after(std::int64_t step) {
  steps_.erase(steps_.upper_bound(step), steps_.end());
  validation_.erase(validation_.upper_bound(step), validation_.end());
}

std::map<std::int64_t, double> RunFile::column(const std::string& name) const {
  std::map<std::int64_t, double> values;
  const auto at = index_.find(name);
  if (at == index_.end()) return values;
  for (const auto& [step, row] : steps_) {
    if (at->second < row.size() && std::isfinite(row[at->second])) {
      values.emplace(step, row[at->second]);
    }
  }
  return values;
}

std::string RunFile::damage() const {
  if (damaged_ == 0) return "";
  return fmt::format("{} no complete {} and {} left out; the first is line {}",
                     damaged_ == 1 ? "1 line is" : fmt::format("{} lines are", damaged_),
                     damaged_ == 1 ? "step" : "steps", damaged_ == 1 ? "is" : "are",
                     first_damaged_);
}

void RunFile::check() const {
  if (!steps_.empty() || !run_.empty() || !validation_.empty()) return;
  const bool blank = damaged_ == 0;
  throw ConfigError(
      {.what = blank ? "there is no step in this file" : "this is not a metrics file",
       .where = blank ? path_.string() : fmt::format("{}, line {}", path_.string(), first_damaged_),
       .fix = blank ? "wait for the first step of its run, or name another file"
                    : "give a file that a training run wrote its metrics to: a JSON object with "
                      "\"step\" on each line"});
}

}  // namespace capstan::monitor
