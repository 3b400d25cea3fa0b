#include "capstan/cli/page/page_data.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "capstan/monitor/step_stats.h"

namespace capstan::cli::page {
namespace {

using Json = nlohmann::ordered_json;
using monitor::RunFile;

// Where their short names differ, that is what runs are told apart by; else whole paths.
std::vector<std::string> names_of(const std::vector<RunFile>& files) {
  std::vector<std::string> names;
  for (const RunFile& file : files) {
    const std::filesystem::path& path = file.path();
    const bool plain = path.filename() == "metrics.jsonl" && path.has_parent_path();
    names.push_back(plain ? path.parent_path().filename().string() : path.stem().string());
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t other = 0; other < i; ++other) {
      if (names[i] == names[other]) names[i] = files[i].path().string();
    }
  }
  return names;
}

Json columns_of(const RunFile& file, const std::vector<std::int64_t>& steps) {
  Json columns = Json::object();
  for (std::size_t i = 0; i < file.columns().size(); ++i) {
    Json column = Json::array();
    for (const std::int64_t step : steps) {
      const RunFile::Row& row = file.steps().at(step);
      const bool known = i < row.size() && std::isfinite(row[i]);
      column.push_back(known ? Json(row[i]) : Json(nullptr));
    }
    columns[file.columns()[i]] = std::move(column);
  }
  // Whole numbers look like such.
  if (columns.contains("step")) columns["step"] = steps;
  return columns;
}

Json validation_of(const RunFile& file) {
  Json steps = Json::array();
  Json losses = Json::array();
  for (const auto& [step, loss] : file.validation_losses()) {
    steps.push_back(step);
    losses.push_back(loss);
  }
  return {{"step", std::move(steps)}, {"loss", std::move(losses)}};
}

Json run_of(const RunFile& file, const std::string& name) {
  Json skipped = Json::array();
  for (const auto& [step, was] : file.column("skipped")) {
    if (was != 0) skipped.push_back(step);
  }
  const Json told = file.run().empty() ? Json(nullptr) : Json::parse(file.run(), nullptr, false);
  return {{"name", name},
          {"run", told},
          {"damage", file.damage()},
          {"steps", file.steps().size()},
          {"columns", columns_of(file, drawn_steps(file))},
          {"validation", validation_of(file)},
          {"skipped", std::move(skipped)}};
}

}  // namespace

std::vector<std::int64_t> drawn_steps(const RunFile& file) {
  const std::size_t count = file.steps().size();
  const std::size_t together =
      count <= kMostPoints ? 1 : 2 * ((count + kMostPoints - 1) / kMostPoints);
  const std::map<std::int64_t, double> losses = file.column("loss");
  const auto loss_at = [&](std::int64_t step) {
    const auto at = losses.find(step);
    return at == losses.end() ? -HUGE_VAL : at->second;
  };
  std::vector<std::int64_t> steps;
  std::int64_t first = 0;
  std::int64_t highest = 0;
  std::size_t i = 0;
  for (const auto& [step, row] : file.steps()) {
    const bool begins = i % together == 0;
    if (begins || loss_at(step) > loss_at(highest)) highest = step;
    if (begins) first = step;
    const bool ends = ++i % together == 0 || i == count;
    if (!ends) continue;
    steps.push_back(first);
    if (highest != first) steps.push_back(highest);
    if (i == count && step > steps.back()) steps.push_back(step);
  }
  return steps;
}

std::string page_data(const std::vector<RunFile>& files, bool live) {
  Json runs = Json::array();
  const std::vector<std::string> names = names_of(files);
  for (std::size_t i = 0; i < files.size(); ++i) runs.push_back(run_of(files[i], names[i]));
  const Json data = {{"live", live}, {"written", monitor::now_s()}, {"runs", std::move(runs)}};
  std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (std::size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at)) {
    text.replace(at, 1, "\\u003c");
  }
  return text;
}

}  // namespace capstan::cli::page
