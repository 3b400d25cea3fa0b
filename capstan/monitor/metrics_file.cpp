#include "capstan/monitor/metrics_file.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "capstan/base/error.h"
#include "capstan/monitor/written_file.h"

namespace capstan::monitor {
namespace {

using Json = nlohmann::ordered_json;

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// A kill or a full disk may have cut the last line.
bool ends_inside_a_line(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(-1, std::ios::end);
  return file.good() && file.get() != '\n';
}

template <typename Value>
Json object_of(const std::vector<std::pair<std::string, Value>>& members) {
  Json object = Json::object();
  for (const auto& [name, value] : members) object[name] = value;
  return object;
}

// A name of a host or a file may be no UTF-8.
std::string text_of(const Json& line) {
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string run_line(const Facts& facts, const std::vector<ConfigValue>& config) {
  Json values = Json::array();
  for (const ConfigValue& each : config) {
    values.push_back({each.path, each.value, each.origin, each.given});
  }
  return text_of({{"run",
                   {{"started", now_s()},
                    {"facts", object_of(facts)},
                    {"environment", object_of(environment())},
                    {"config", std::move(values)}}}});
}

std::string metrics_line(const StepStats& stats) {
  Json line = {{"step", stats.step},
               {"loss", finite_or_null(stats.loss)},
               {"lr", finite_or_null(stats.lr)},
               {"loss_scale", stats.loss_scale},
               {"grad_norm", finite_or_null(stats.grad_norm)},
               {"skipped", stats.skipped}};
  const auto add_known = [&](const char* name, double value) {
    if (value != 0) line[name] = finite_or_null(value);
  };
  add_known("tokens_per_s", stats.tokens_per_s);
  add_known("flops_per_s", stats.flops_per_s);
  add_known("samples_per_s", stats.samples_per_s);
  line["memory_bytes"] = {{"device", stats.device_bytes}, {"host", stats.host_bytes}};
  if (!stats.held_bytes.empty()) line["held_bytes"] = object_of(stats.held_bytes);
  if (stats.sequence_tokens) line["sequence_tokens"] = *stats.sequence_tokens;
  if (stats.theta) line["theta"] = *stats.theta;
  if (stats.gpu_use) line["gpu_use"] = *stats.gpu_use;
  if (stats.times) {
    line["time_ms"] = {{"forward", stats.times->forward},
                       {"backward", stats.times->backward},
                       {"reduce", stats.times->reduce},
                       {"step", stats.times->step}};
  }
  line["samples"] = stats.samples;
  line["time"] = stats.time_s;
  return text_of(line);
}

std::string validation_line(std::int64_t step, double loss) {
  return Json{{"step", step}, {"validation_loss", finite_or_null(loss)}}.dump();
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
  check_written(file_, path_);
}

}  // namespace capstan::monitor
