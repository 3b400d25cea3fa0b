#include "capstan/cli/train/losses.h"

#include <map>

#include "capstan/monitor/run_file.h"

namespace capstan::cli::train {
namespace {

std::vector<CurvePoint> points(const std::map<std::int64_t, double>& losses, std::int64_t last) {
  std::vector<CurvePoint> out;
  out.reserve(losses.size());
  for (const auto& [step, loss] : losses) {
    if (step <= last) out.push_back({static_cast<double>(step), loss});
  }
  return out;
}

}  // namespace

void read_losses(const std::filesystem::path& path, std::int64_t last, Curve& curve) {
  curve.train.clear();
  curve.validation.clear();
  std::error_code missing;
  if (!std::filesystem::is_regular_file(path, missing)) return;
  monitor::RunFile file(path);
  file.read_more(/*ended=*/true);
  curve.train = points(file.column("loss"), last);
  curve.validation = points(file.validation_losses(), last);
}

}  // namespace capstan::cli::train
