// Where a run's figures go, beside its log. None of it changes a result.
#pragma once

#include <string>
#include <vector>

namespace capstan::monitor {

// output_path/job_name is the folder; relative to where the program was started.
struct FolderOptions {
  bool enabled = false;
  std::string output_path;
  std::string job_name = "DeepSpeedJobName";
  bool operator==(const FolderOptions&) const = default;
};

// One value of a configuration, as a metrics file tells it.
struct ConfigValue {
  std::string path;
  std::string value;
  std::string origin;
  bool given = false;  // false: nobody said anything about it
  bool operator==(const ConfigValue&) const = default;
};

struct Options {
  std::string metrics;              // a file with a JSON object per step; empty: none
  FolderOptions csv;                // a file per figure
  FolderOptions tensorboard;        // an event file
  bool others = false;              // the caller has monitors of its own (engine::Parts::monitors)
  std::vector<ConfigValue> config;  // for the metrics file; empty: it tells none
  bool operator==(const Options&) const = default;

  bool any() const { return !metrics.empty() || csv.enabled || tensorboard.enabled || others; }
};

}  // namespace capstan::monitor
