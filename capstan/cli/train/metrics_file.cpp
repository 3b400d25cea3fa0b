#include "capstan/cli/train/metrics_file.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "capstan/base/error.h"

namespace capstan::cli::train {
namespace {

nlohmann::ordered_json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

// A kill or a full disk may have cut the last line.
bool ends_inside_a_line(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(-1, std::ios::end);
  return file.good() && file.get() != '\n';
}

}  // namespace

std::string metrics_line(const StepStats& stats) {
  nlohmann::ordered_json line = {{"step", stats.step},
                                 {"loss", finite_or_null(stats.loss)},
                                 {"lr", stats.lr},
                                 {"loss_scale", stats.loss_scale},
                                 {"grad_norm", finite_or_null(stats.grad_norm)},
                                 {"skipped", stats.skipped},
                                 {"tokens_per_s", stats.tokens_per_s},
                                 {"flops_per_s", stats.flops_per_s}};
  line["memory_bytes"] = {{"device", stats.device_bytes}, {"host", stats.host_bytes}};
  if (stats.gpu_use) line["gpu_use"] = *stats.gpu_use;
  return line.dump();
}

std::string validation_line(std::int64_t step, double loss) {
  return nlohmann::ordered_json{{"step", step}, {"validation_loss", finite_or_null(loss)}}.dump();
}

MetricsFile::MetricsFile(const std::filesystem::path& path, Begin begin)
    : path_(path), file_(path, begin == Begin::anew ? std::ios::trunc : std::ios::app) {
  if (!file_) {
    throw IoError({.what = "cannot make the metrics file",
                   .where = path.string(),
                   .fix = "give a path in a folder that exists and can be written"});
  }
  if (begin == Begin::at_end && ends_inside_a_line(path)) file_ << '\n';
}

void MetricsFile::write(const std::string& line) {
  file_ << line << '\n' << std::flush;
  if (!file_) {
    throw IoError({.what = "cannot write the metrics",
                   .where = path_.string(),
                   .fix = "free some disk space, or leave --metrics out"});
  }
}

}  // namespace capstan::cli::train
