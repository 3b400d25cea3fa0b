#include "capstan/monitor/log.h"

#include <cmath>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/monitor/csv_files.h"
#include "capstan/monitor/event_file.h"

namespace capstan::monitor {
namespace {

std::filesystem::path folder_of(const FolderOptions& options) {
  return std::filesystem::path(options.output_path) / options.job_name;
}

std::string in_one_line(const ErrorInfo& info) {
  return fmt::format("{} ({}){}{}", info.what, info.where, info.fix.empty() ? "" : "; ", info.fix);
}

}  // namespace

Log::Log(const Options& options, LogParts parts) : logger_(parts.logger) {
  if (!options.metrics.empty()) {
    metrics_ = std::make_unique<MetricsFile>(
        options.metrics, parts.goes_on ? MetricsFile::Begin::at_end : MetricsFile::Begin::anew);
    write_line(run_line(parts.facts, options.config));
  }
  if (options.csv.enabled) {
    sinks_.push_back({"the CSV monitor", std::make_unique<CsvFiles>(folder_of(options.csv))});
  }
  if (options.tensorboard.enabled) {
    sinks_.push_back(
        {"the TensorBoard monitor", std::make_unique<EventFile>(folder_of(options.tensorboard))});
  }
  for (std::unique_ptr<Sink>& sink : parts.others) {
    sinks_.push_back({"a monitor", std::move(sink)});
  }
}

void Log::step(const StepStats& stats) {
  if (metrics_) write_line(metrics_line(stats));
  if (!sinks_.empty()) write_events(events_of(stats));
}

void Log::validation(const StepStats& at, double loss) {
  if (metrics_) write_line(validation_line(at.step, loss));
  if (std::isfinite(loss)) write_events({validation_event(at.samples, loss)});
}

void Log::write_line(const std::string& line) {
  try_to("the metrics file", [&] { metrics_->write(line); }, [&] { metrics_.reset(); });
}

void Log::write_events(const std::vector<Event>& events) {
  for (Named& each : sinks_) {
    try_to(each.name, [&] { each.sink->write(events); }, [&] { each.sink.reset(); });
  }
  std::erase_if(sinks_, [](const Named& each) { return each.sink == nullptr; });
}

void Log::try_to(const std::string& name, const std::function<void()>& write,
                 const std::function<void()>& give_up) {
  std::string why;
  try {
    write();
    return;
  } catch (const Error& error) {
    why = in_one_line(error.info());
  } catch (const std::exception& error) {
    why = error.what();
  }
  logger_.log(LogLevel::warning,
              fmt::format("{} is left out from here on, training continues: {}", name, why));
  give_up();
}

}  // namespace capstan::monitor
