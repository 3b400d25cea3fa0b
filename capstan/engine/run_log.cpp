#include "capstan/engine/run_log.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/text.h"
#include "capstan/engine/memory_use.h"

namespace capstan::engine {

RunLog::RunLog(Logger& logger, Voice voice, const profile::Options& options,
               std::shared_ptr<profile::Recorder> recorder)
    : logger_(logger),
      voice_(voice),
      options_(options),
      recorder_(std::move(recorder)),
      comms_(options.comms) {
  profile::Kinds kinds;
  if (options_.throughput && options_.steps_per_print > 0) {
    kinds = kinds | profile::Kinds{profile::Kind::phase};
  }
  if (options_.wall_clock_breakdown) {
    kinds = kinds | profile::Kinds{profile::Kind::phase, profile::Kind::wait};
  }
  if (options_.comms.enabled) kinds = kinds | CommsLog::kKinds;
  const bool heard = voice_.speaks && voice_.level <= LogLevel::info;
  if (heard && !kinds.empty()) reader_.emplace(recorder_, kinds);
}

void RunLog::say(LogLevel level, const std::string& text) const {
  if (level < voice_.level) return;
  if (voice_.speaks || level == LogLevel::error) logger_.log(level, text);
}

void RunLog::say_on_any_rank(LogLevel level, const std::string& text) const {
  if (level >= voice_.level) logger_.log(level, text);
}

void RunLog::phase_ended(Phase phase, store::Ledger& ledger) {
  if (clock_.has_value()) clock_->lap(phase);
  read_spans();
  if (!options_.memory_breakdown) return;
  say(LogLevel::info, fmt::format("memory after {}: {} (peaks: {}); host {} resident",
                                  to_string(phase), store::to_text(ledger.now()),
                                  store::to_text(ledger.peak()), format_bytes(resident_bytes())));
  ledger.reset_peak();
}

void RunLog::read_spans() {
  if (!reader_.has_value()) return;
  if (const std::int64_t dropped = reader_->take_dropped(); dropped > 0) {
    say(LogLevel::warning,
        fmt::format("the times below leave out {}: more than {} came between two steps",
                    counted(dropped, "operation"), profile::Reader::kMaxRecords));
  }
  for (const profile::Record& record : reader_->take()) {
    // Engines over one group share its recorder.
    if (record.owner != nullptr && (!clock_.has_value() || record.owner != &*clock_)) continue;
    throughput_.add(record);
    times_.add(record);
    if (comms_.add(record) && options_.comms.verbose) say(LogLevel::info, comms_.line(record));
  }
}

std::optional<monitor::PhaseMilliseconds> RunLog::step_ended(const Progress& progress,
                                                             const StepReport& report,
                                                             const store::Ledger& ledger) {
  throughput_.step_ended(report.samples);
  if (trial_.has_value()) trial_->step_ended(report.samples);
  const bool comms_due =
      options_.comms.enabled && (report.log_due || options_.steps_per_print == 0);
  if (reader_.has_value() && (options_.wall_clock_breakdown || comms_due)) {
    recorder_->settle();
    read_spans();
  }
  std::optional<monitor::PhaseMilliseconds> times;
  if (options_.wall_clock_breakdown) {
    if (reader_.has_value()) times = times_.now();
    say(LogLevel::info, times_.take_line());
  }
  if (comms_due) say(LogLevel::info, comms_.take_table());
  if (!report.log_due) return times;
  say(LogLevel::info, fmt::format("step={}, skipped={}, lr=[{}]", progress.steps, progress.skipped,
                                  fmt::join(report.lr, ", ")));
  if (options_.throughput && throughput_.current().has_value()) {
    say(LogLevel::info, throughput_line(throughput_, progress.micro_steps, ledger.now().total(),
                                        ledger.peak_total()));
  }
  return times;
}

void RunLog::trace_surprises(std::int64_t count) {
  if (count > last_surprises_) {
    say(LogLevel::info, fmt::format("{} not used in the recorded order: gathered when needed, "
                                    "not ahead",
                                    counted(count - last_surprises_, "unit")));
  }
  last_surprises_ = count;
}

}  // namespace capstan::engine
