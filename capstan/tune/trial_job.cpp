#include <algorithm>
#include <csignal>
#include <fstream>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/launch/machine.h"
#include "capstan/launch/plan.h"
#include "capstan/tune/trial.h"

namespace capstan::tune {
namespace {

using Clock = std::chrono::steady_clock;

// From the request to stop to the kill: there is nothing that a trial should save.
constexpr std::chrono::milliseconds kGrace{3000};

// What the ranks print, in two files beside the trial's configuration.
class Logs {
 public:
  explicit Logs(const std::filesystem::path& folder)
      : out_(folder / "stdout.log"), err_(folder / "stderr.log") {
    if (out_ && err_) return;
    throw IoError({.what = "cannot write the logs of a trial",
                   .where = folder.string(),
                   .fix = "set autotuning.results_dir to a folder that can be written"});
  }

  void write(int rank, launch::Stream stream, std::string_view line) {
    const bool error = stream == launch::Stream::err;
    (error ? err_ : out_) << "[rank " << rank << "] " << line << std::endl;
    if (error) lacks_memory_ |= tells_out_of_memory(line);
  }

  bool lacks_memory() const { return lacks_memory_; }

 private:
  std::ofstream out_;
  std::ofstream err_;
  bool lacks_memory_ = false;
};

// The line of an error that says what is wrong: the last of a Python traceback, the first of ours.
std::string telling_line(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    if (line.starts_with("capstan: error:")) return line.substr(std::string("capstan: ").size());
  }
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const std::string_view text = trim(*line);
    const bool part = text.starts_with("where:") || text.starts_with("fix:");
    if (!text.empty() && !part) return std::string(text);
  }
  return "";
}

Outcome judge(const launch::Result& result, const std::optional<Record>& record,
              bool lacks_memory) {
  if (record) {
    return {.end = End::measured,
            .latency = record->latency,
            .throughput = record->throughput,
            .memory_bytes = record->memory_bytes};
  }
  const bool killed = std::ranges::any_of(
      result.endings, [](const launch::Ending& ending) { return ending.out_of_memory; });
  const bool failed = !result.sentence.empty();
  const std::string line = telling_line(result.last_lines);
  if (killed || (failed && lacks_memory)) return {.end = End::out_of_memory, .why = line};
  if (!failed) return {.why = "it ended before autotuning.end_profile_step"};
  return {.why = result.sentence + (line.empty() ? "" : ": " + line)};
}

}  // namespace

Outcome run_trial(const TrialJob& trial, launch::SignalWatch& signals) {
  launch::Options options = trial.job;
  options.grace = kGrace;
  const launch::Plan plan = launch::make_plan(options, launch::this_machine());
  Logs logs(trial.folder);
  const Clock::time_point deadline = Clock::now() + trial.limit;
  bool too_long = false;
  launch::RunOptions run;
  run.signals = &signals;
  run.on_line = [&](int rank, launch::Stream stream, std::string_view line) {
    logs.write(rank, stream, line);
  };
  run.enough = [&] {
    too_long = Clock::now() >= deadline;
    return too_long || std::filesystem::exists(trial.record);
  };
  const launch::Result result = launch::run(plan, run);
  const std::optional<Record> record = read_record(trial.record);
  if (result.stopped_by != 0) {
    std::raise(result.stopped_by);  // held back: the caller hears of it too
    return {.end = End::stopped};
  }
  if (too_long && !record) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(trial.limit).count();
    return {.end = End::too_long, .why = fmt::format("nothing after {} s", seconds)};
  }
  return judge(result, record, logs.lacks_memory());
}

}  // namespace capstan::tune
