// Tells every monitor of a run what its steps were. Training never ends because of one: a monitor
// that fails is left out from there on, with one warning.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "capstan/base/log.h"
#include "capstan/monitor/event.h"
#include "capstan/monitor/metrics_file.h"
#include "capstan/monitor/options.h"

namespace capstan::monitor {

// What only the caller knows.
struct LogParts {
  Logger& logger;        // hears the warnings; must outlive the log
  Facts facts = {};      // of the run, for the metrics file
  bool goes_on = false;  // after what the metrics file holds already
  std::vector<std::unique_ptr<Sink>> others = {};
};

// Threads: one.
class Log {
 public:
  // Makes the files and folders; throws IoError where that fails, as nothing has started yet.
  Log(const Options& options, LogParts parts);

  void step(const StepStats& stats);
  void validation(const StepStats& at, double loss);  // `at`: the step that it came after

 private:
  struct Named {
    std::string name;
    std::unique_ptr<Sink> sink;
  };
  void write_line(const std::string& line);
  void write_events(const std::vector<Event>& events);
  void try_to(const std::string& name, const std::function<void()>& write,
              const std::function<void()>& give_up);

  Logger& logger_;
  std::unique_ptr<MetricsFile> metrics_;
  std::vector<Named> sinks_;
};

}  // namespace capstan::monitor
