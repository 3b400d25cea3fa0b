// One JSON object per optimizer step, one per line, for programs that watch a run.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "capstan/cli/train/loss_curve.h"
#include "capstan/cli/train/step_stats.h"

namespace capstan::cli::train {

// {"step":1,"loss":5.54,"lr":0.001,…}; a figure that is not finite becomes null, as JSON has none.
std::string metrics_line(const StepStats& stats);
std::string validation_line(std::int64_t step, double loss);

// The losses of the steps up to `last` that the file tells; empty where there is no file. Of a step
// that was taken again, after a kill, the last time counts; lines that were cut are left out.
void read_losses(const std::filesystem::path& path, std::int64_t last, Curve& curve);

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

}  // namespace capstan::cli::train
