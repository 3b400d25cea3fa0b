#include "capstan/cli/doctor/evidence.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/json/reader.h"

namespace capstan::cli::doctor {
namespace {

using std::filesystem::path;

constexpr std::size_t kMostBytes = std::size_t{16} << 20;  // of a file of notes
constexpr std::size_t kMostLineBytes = std::size_t{1} << 16;
constexpr std::size_t kMostSteps = 5'000'000;

std::optional<double> number(const json::Value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->integer() != nullptr) return static_cast<double>(*value->integer());
  if (value->real() != nullptr) return *value->real();
  return std::nullopt;
}

// Nothing where the line is no step of training.
std::optional<StepLine> step_from(const std::string& text) {
  try {
    const json::Value line = json::read(text, "metrics");
    const json::Value* const step = line.find("step");
    if (step == nullptr || step->integer() == nullptr || line.find("loss") == nullptr) {
      return std::nullopt;
    }
    StepLine result{.step = *step->integer(),
                    .loss = number(line.find("loss")),
                    .grad_norm = number(line.find("grad_norm"))};
    const json::Value* const skipped = line.find("skipped");
    result.skipped = skipped != nullptr && skipped->boolean() != nullptr && *skipped->boolean();
    result.tokens_per_s = number(line.find("tokens_per_s")).value_or(0);
    return result;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// A run that was resumed writes its steps again: the later ones count.
void read_metrics(const path& file, Evidence& evidence) {
  std::ifstream in(file);
  std::map<std::int64_t, StepLine> steps;
  std::int64_t bad = 0;
  for (std::string line; steps.size() < kMostSteps && std::getline(in, line);) {
    if (trim(line).empty()) continue;
    const auto step = line.size() > kMostLineBytes ? std::nullopt : step_from(line);
    if (step) {
      steps.insert_or_assign(step->step, *step);
    } else if (line.find("\"validation_loss\"") == std::string::npos &&
               !line.starts_with("{\"run\":")) {
      ++bad;
    }
  }
  const std::string name = file.filename();
  if (bad > 0) {
    evidence.not_read.push_back(
        fmt::format("{} of {}: cut off, or not of a metrics file", counted(bad, "line"), name));
  }
  if (steps.empty()) return;
  evidence.found.push_back(
      fmt::format("{}: {}", name, counted(static_cast<std::int64_t>(steps.size()), "step")));
  if (steps.size() < evidence.steps.size()) return;
  evidence.steps.clear();
  for (auto& [number, step] : steps) evidence.steps.push_back(step);
}

std::optional<json::Value> read_json(const path& file, Evidence& evidence) {
  const auto refuse = [&](const std::string& why) {
    evidence.not_read.push_back(fmt::format("{}: {}", file.filename().string(), why));
    return std::nullopt;
  };
  std::ifstream in(file, std::ios::binary);
  std::string text;
  std::vector<char> block(1 << 16);
  while (text.size() <= kMostBytes &&
         (in.read(block.data(), std::ssize(block)) || in.gcount() > 0)) {
    text.append(block.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (trim(text).empty()) return refuse("empty");
  if (text.size() > kMostBytes) return refuse("too large");
  try {
    return json::read(text, file.filename().string());
  } catch (const Error&) {
    return refuse("cut off, or not JSON");
  }
}

void read_notes(const path& file, Evidence& evidence) {
  const auto value = read_json(file, evidence);
  if (!value) return;
  if (auto notes = profile::notes_from_json(*value)) {
    evidence.ranks.push_back(std::move(*notes));
  } else {
    evidence.not_read.push_back(file.filename().string() + ": not the notes of a rank");
  }
}

void read_job(const path& file, Evidence& evidence) {
  const auto value = read_json(file, evidence);
  if (!value) return;
  evidence.job = record_from_json(*value);
  if (evidence.job) {
    evidence.found.push_back(fmt::format("{}: how {} ended", kJobFile,
                                         counted(std::ssize(evidence.job->ranks), "rank")));
  } else {
    evidence.not_read.push_back(file.filename().string() + ": not the record of a job");
  }
}

// In the order of their names; nothing where there is no such folder.
std::vector<path> files_in(const path& folder) {
  std::vector<path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::error_code gone;
    if (entry.is_regular_file(gone)) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

Evidence read_evidence(const path& folder, const path& metrics) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    throw ConfigError({.what = "there is no such folder",
                       .where = folder.string(),
                       .fix = "name the folder of `capstan train --save` or `capstan launch "
                              "--log-dir`"});
  }
  if (!metrics.empty() && !std::filesystem::is_regular_file(metrics, error)) {
    throw ConfigError({.what = "there is no such file",
                       .where = metrics.string(),
                       .fix = "name the file of `capstan train --metrics`"});
  }
  Evidence evidence;
  for (const path& in : {folder / "diagnosis", folder}) {
    for (const path& file : files_in(in)) {
      const std::string name = file.filename();
      if (name == kJobFile && !evidence.job) read_job(file, evidence);
      if (name.starts_with("rank_") && name.ends_with(".json")) read_notes(file, evidence);
      if (name.ends_with(".jsonl") && metrics.empty()) read_metrics(file, evidence);
    }
  }
  if (!metrics.empty()) read_metrics(metrics, evidence);
  std::ranges::sort(evidence.ranks, {}, &profile::RankNotes::rank);
  const auto [first, last] = std::ranges::unique(evidence.ranks, {}, &profile::RankNotes::rank);
  evidence.ranks.erase(first, last);
  if (!evidence.ranks.empty()) {
    evidence.found.push_back(
        fmt::format("notes of {}", counted(std::ssize(evidence.ranks), "rank")));
  }
  return evidence;
}

}  // namespace capstan::cli::doctor
