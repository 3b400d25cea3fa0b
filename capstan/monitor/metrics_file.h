// One JSON object per optimizer step, one per line, for programs that watch a run.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "capstan/monitor/environment.h"
#include "capstan/monitor/options.h"
#include "capstan/monitor/step_stats.h"

namespace capstan::monitor {

// {"run":{"started":…,"facts":{…},"environment":{…},"config":[[path,value,origin,given],…]}}: the
// first line of a run.
std::string run_line(const Facts& facts, const std::vector<ConfigValue>& config);

// {"step":1,"loss":5.54,"lr":0.001,…}; a figure that is not finite becomes null, as JSON has none.
std::string metrics_line(const StepStats& stats);
std::string validation_line(std::int64_t step, double loss);

// Threads: one. Each line is complete in the file when the call returns.
class MetricsFile {
 public:
  enum class Begin { anew, at_end };
  // Throws IoError when the file cannot be made.
  explicit MetricsFile(const std::filesystem::path& path, Begin begin = Begin::anew);
  void write(const std::string& line);  // throws IoError when the disk is full

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace capstan::monitor
