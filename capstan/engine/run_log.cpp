#include "capstan/engine/run_log.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "capstan/base/text.h"

namespace capstan::engine {
namespace {

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::forward:
      return "forward";
    case Phase::backward:
      return "backward";
    default:
      return "step";
  }
}

// Resident memory of this process.
std::int64_t host_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

bool is_wanted(const profile::CommsLoggerOptions& options, std::string_view op) {
  return options.all_ops ||
         std::find(options.ops.begin(), options.ops.end(), op) != options.ops.end();
}

}  // namespace

RunLog::RunLog(Logger& logger, Voice voice, const profile::Options& options,
               std::int64_t samples_per_step)
    : logger_(logger), voice_(voice), options_(options), throughput_(samples_per_step) {}

void RunLog::say(LogLevel level, const std::string& text) const {
  if (level < voice_.level) return;
  if (voice_.speaks || level == LogLevel::error) logger_.log(level, text);
}

void RunLog::phase_ended(Phase phase, store::Ledger& ledger, std::chrono::nanoseconds reducing) {
  clock_.add(Phase::reduce, reducing);
  clock_.lap(phase);
  if (!options_.memory_breakdown) return;
  say(LogLevel::info, fmt::format("memory after {}: {} (peaks: {}); host {} resident",
                                  name_of(phase), store::to_text(ledger.now()),
                                  store::to_text(ledger.peak()), format_bytes(host_bytes())));
  ledger.reset_peak();
}

void RunLog::step_ended(const Progress& progress, const std::vector<double>& lr,
                        const store::Ledger& ledger, const comm::Counters& counters) {
  throughput_.step_ended(Throughput::Clock::now());
  if (options_.wall_clock_breakdown) say(LogLevel::info, clock_.take_line());
  const bool due = options_.steps_per_print > 0 && progress.steps % options_.steps_per_print == 0;
  if (options_.comms.enabled && (due || options_.steps_per_print == 0)) {
    say(LogLevel::info, comms_table(counters));
  }
  if (!due) return;
  say(LogLevel::info, fmt::format("step={}, skipped={}, lr=[{}]", progress.steps, progress.skipped,
                                  fmt::join(lr, ", ")));
  if (options_.throughput && throughput_.current().has_value()) {
    say(LogLevel::info, throughput_line(throughput_, progress.micro_steps, ledger.now().total(),
                                        ledger.peak_total()));
  }
}

void RunLog::operation_ended(comm::OpFacts facts, std::chrono::nanoseconds time) const {
  if (!is_wanted(options_.comms, comm::to_string(facts.kind))) return;
  if (!options_.comms.debug) facts.label = {};
  const std::int64_t bytes = facts.elems * static_cast<std::int64_t>(c10::elementSize(facts.dtype));
  const double seconds = std::chrono::duration<double>(time).count();
  say(LogLevel::info,
      fmt::format("{}: {} in {:.3f} ms, {:.2f} GB/s", comm::to_text(facts), format_bytes(bytes),
                  seconds * 1e3, static_cast<double>(bytes) / seconds / 1e9));
}

void RunLog::trace_surprises(std::int64_t count) {
  if (count > last_surprises_) {
    say(LogLevel::info, fmt::format("{} not used in the recorded order: gathered when needed, "
                                    "not ahead",
                                    counted(count - last_surprises_, "unit")));
  }
  last_surprises_ = count;
}

std::string RunLog::comms_table(const comm::Counters& counters) {
  std::string table = "communication since the last report:";
  for (int i = 0; i < comm::kOpKinds; ++i) {
    const auto kind = static_cast<comm::OpKind>(i);
    const comm::OpCounter& now = counters[kind];
    const comm::OpCounter& last = last_counters_[kind];
    if (now.calls == last.calls || !is_wanted(options_.comms, comm::to_string(kind))) continue;
    const std::int64_t bytes = now.bytes - last.bytes;
    const std::chrono::duration<double> time = now.time - last.time;
    table += fmt::format("\n  {:<15} {:>8} calls {:>12} {:>10.2f} ms {:>8.2f} GB/s",
                         comm::to_string(kind), now.calls - last.calls, format_bytes(bytes),
                         time.count() * 1e3, static_cast<double>(bytes) / time.count() / 1e9);
  }
  last_counters_ = counters;
  return table;
}

}  // namespace capstan::engine
