#include "capstan/tune/trial_files.h"

#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/json/reader.h"
#include "capstan/json/writer.h"

namespace capstan::tune {
namespace {

[[noreturn]] void fail(const std::string& what, const std::filesystem::path& where,
                       const std::string& reason) {
  throw IoError({.what = what + (reason.empty() ? "" : ": " + reason),
                 .where = where.string(),
                 .fix = "set autotuning.results_dir and autotuning.exps_dir to folders that can be "
                        "written, on a disk with free space"});
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("cannot make the folder", folder, error.message());
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) fail("cannot write the file", path, "");
}

json::Value describe(const Experiment& experiment) {
  json::Array words;
  for (const std::string& word : experiment.words) words.emplace_back(word);
  json::Value value{json::Object{}};
  value.add("name", json::Value(experiment.name));
  value.add("ds_config", experiment.config);
  value.add("num_gpus", json::Value(experiment.ranks));
  value.add("command", json::Value(std::move(words)));
  return value;
}

std::optional<json::Value> read(const std::filesystem::path& path) {
  std::error_code missing;
  if (!std::filesystem::is_regular_file(path, missing)) return std::nullopt;
  try {
    return json::read_file(path).root;
  } catch (const Error&) {  // cut off by a crash: as if it were not there
    return std::nullopt;
  }
}

}  // namespace

TrialFiles::TrialFiles(const std::filesystem::path& results_dir,
                       const std::filesystem::path& exps_dir)
    : results_(std::filesystem::absolute(results_dir)),
      exps_(std::filesystem::absolute(exps_dir)) {}

std::optional<Outcome> TrialFiles::known(const Experiment& experiment) const {
  const auto before = read(exps_ / (experiment.name + ".json"));
  const auto result = read(folder(experiment.name) / "result.json");
  if (!before || !result || !(*before == describe(experiment))) return std::nullopt;
  return outcome_from(*result);
}

void TrialFiles::begin(const Experiment& experiment, const json::Value& config_of_trial) const {
  make_folder(exps_);
  make_folder(folder(experiment.name));
  for (const char* old : {"metrics.json", "result.json"}) {
    std::error_code ignored;
    std::filesystem::remove(folder(experiment.name) / old, ignored);
  }
  write_text(exps_ / (experiment.name + ".json"), json::write(describe(experiment)) + "\n");
  write_text(config(experiment.name), json::write(config_of_trial) + "\n");
  write_text(folder(experiment.name) / "cmd.txt",
             fmt::format("{}\n", fmt::join(experiment.words, " ")));
}

void TrialFiles::end(const Experiment& experiment, const Outcome& outcome) const {
  write_text(folder(experiment.name) / "result.json", json::write(to_json(outcome)) + "\n");
}

std::filesystem::path TrialFiles::write(const std::string& name, const std::string& text) const {
  make_folder(results_);
  write_text(results_ / name, text);
  return results_ / name;
}

}  // namespace capstan::tune
