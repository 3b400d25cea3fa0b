#include "capstan/cli/train/metrics_file.h"

#include <cmath>
#include <map>

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

using LossOfStep = std::map<std::int64_t, double>;

void add_loss(const nlohmann::json& line, const char* name, LossOfStep& losses) {
  const auto step = line.find("step");
  const auto loss = line.find(name);
  if (step == line.end() || !step->is_number_integer()) return;
  if (loss != line.end() && loss->is_number()) losses[step->get<std::int64_t>()] = *loss;
}

std::vector<CurvePoint> points(const LossOfStep& losses, std::int64_t last) {
  std::vector<CurvePoint> out;
  out.reserve(losses.size());
  for (const auto& [step, loss] : losses) {
    if (step <= last) out.push_back({static_cast<double>(step), loss});
  }
  return out;
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

void read_losses(const std::filesystem::path& path, std::int64_t last, Curve& curve) {
  LossOfStep train;
  LossOfStep validation;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) continue;
    add_loss(line, "loss", train);
    add_loss(line, "validation_loss", validation);
  }
  curve.train = points(train, last);
  curve.validation = points(validation, last);
}

MetricsFile::MetricsFile(const std::filesystem::path& path, Begin begin)
    : path_(path), file_(path, begin == Begin::anew ? std::ios::trunc : std::ios::app) {
  if (!file_) {
    throw IoError({.what = "cannot create the metrics file",
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
                   .fix = "free some disk space, or remove --metrics"});
  }
}

}  // namespace capstan::cli::train
