// The files of a search, with the names that DeepSpeed's users know: one folder per trial, the
// summary, and the best configuration.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "capstan/tune/trial.h"

namespace capstan::tune {

// What decides about a trial's outcome: the same again need not run again.
struct Experiment {
  std::string name;
  json::Value config;
  std::vector<std::string> words;  // of the job, with CONFIG where the file's name stands
  int ranks = 1;
};

//   exps_dir/NAME.json          name, ds_config, num_gpus, command
//   results_dir/NAME/           ds_config.json cmd.txt stdout.log stderr.log metrics.json
//   result.json results_dir/summary.txt     ds_config_optimal.json cmd_optimal.txt
class TrialFiles {
 public:
  // Both are made when something is written into them.
  TrialFiles(const std::filesystem::path& results_dir, const std::filesystem::path& exps_dir);

  std::filesystem::path folder(const std::string& name) const { return results_ / name; }
  std::filesystem::path config(const std::string& name) const {
    return folder(name) / "ds_config.json";
  }
  std::filesystem::path record(const std::string& name) const {
    return folder(name) / "metrics.json";
  }
  const std::filesystem::path& results() const { return results_; }

  // How the same experiment ended when it was run before.
  std::optional<Outcome> known(const Experiment& experiment) const;
  // Before its job starts: its files, anew. Throws IoError, as end() does.
  void begin(const Experiment& experiment, const json::Value& config_of_trial) const;
  void end(const Experiment& experiment, const Outcome& outcome) const;
  // The path of what was written. Throws IoError.
  std::filesystem::path write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path results_;
  std::filesystem::path exps_;
};

}  // namespace capstan::tune
