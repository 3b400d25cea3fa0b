#include "capstan/cli/tune/tune.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "capstan/base/error.h"
#include "capstan/cli/tune/job.h"
#include "capstan/cli/tune/view.h"
#include "capstan/json/writer.h"
#include "capstan/launch/machine.h"
#include "capstan/launch/plan.h"
#include "capstan/store/left_swap_files.h"
#include "capstan/tune/trial.h"
#include "capstan/tune/trial_files.h"

namespace capstan::cli::tune {
namespace {

using capstan::tune::Combination;
using capstan::tune::End;
using capstan::tune::Outcome;

// Large models take their time to load; the first trials tell how much.
constexpr double kFirstLimitSeconds = 1800;
constexpr double kLeastLimitSeconds = 60;
constexpr double kSlowerThanBefore = 5;

// The pipe table that DeepSpeed's users know.
std::string table_of(const capstan::tune::Space& space, const capstan::tune::Answer& answer) {
  std::string text =
      "| trial | configuration | samples/s | ms per step | memory bytes | outcome |\n"
      "|---|---|---|---|---|---|\n";
  int number = 0;
  for (const auto& [candidate, outcome] : answer.trials) {
    const bool measured = outcome.end == End::measured;
    text +=
        fmt::format("| {} | {} | {} | {} | {} | {} |\n", ++number, describe(space, candidate),
                    measured ? fmt::format("{:.4g}", outcome.throughput) : "",
                    measured ? fmt::format("{:.4g}", 1000 * outcome.latency) : "",
                    measured ? std::to_string(outcome.memory_bytes) : "", to_string(outcome.end));
  }
  return text;
}

View::Mode view_mode(const LaunchFlags& flags) {
  if (flags.quiet) return View::Mode::quiet;
  return isatty(STDOUT_FILENO) == 1 ? View::Mode::terminal : View::Mode::lines;
}

class Tuner {
 public:
  explicit Tuner(const Request& request)
      : request_(request),
        job_(make_job(request.launch, request.config)),
        alternatives_(capstan::tune::take_alternatives(job_->config())),
        options_(options_of(resolved_)),
        space_(make_space(alternatives_, resolved_, job_->facts())),
        files_(options_.results_dir, options_.exps_dir),
        view_(space_, options_, job_->tokens_per_sample(), view_mode(request.launch)) {}

  int run() {
    if (request_.launch.dry_run) return show();
    const json::Value& config = alternatives_.config.root;
    capstan::tune::Predict predict;
    if (!request_.machine.empty()) predict = job_->predict(request_.machine, space_, config);
    view_.begin(options_.results_dir, job_->facts().ranks);
    const capstan::tune::Answer answer = find(predict);
    return report(answer);
  }

 private:
  capstan::tune::Options options_of(const config::Resolved& resolved) const {
    capstan::tune::Options options = resolved.tune;
    if (request_.full) options.fast = false;
    if (request_.trials > 0) options.most_trials = request_.trials;
    if (request_.overwrite) options.overwrite = true;
    return options;
  }

  capstan::tune::Answer find(const capstan::tune::Predict& predict) {
    launch::SignalWatch signals;  // between trials too
    const auto try_one = [&](const Combination& candidate, int more) {
      listen(signals);
      if (stopped_by_ != 0) return Outcome{.end = End::stopped};
      return measure(candidate, more, signals);
    };
    capstan::tune::Answer answer = search(space_, options_, try_one, predict);
    listen(signals);
    return answer;
  }

  void listen(launch::SignalWatch& signals) {
    while (const std::optional<int> number = signals.take()) {
      const bool stops = *number == SIGINT || *number == SIGTERM || *number == SIGHUP;
      if (stops && stopped_by_ == 0) stopped_by_ = *number;
    }
  }

  Outcome measure(const Combination& candidate, int more, launch::SignalWatch& signals) {
    capstan::tune::Experiment experiment{
        .name = tag(space_, candidate),
        .config = apply(space_, candidate, alternatives_.config.root),
        .ranks = job_->facts().ranks};
    experiment.words = job_->command({"CONFIG", experiment.config});
    view_.trial_begins(candidate, more);
    std::optional<Outcome> known;
    if (!options_.overwrite) known = files_.known(experiment);
    if (known) {
      view_.trial_ended(candidate, *known, /*before=*/true);
      return *known;
    }
    const Outcome outcome = run_one(experiment, candidate, signals);
    if (outcome.end == End::stopped) return outcome;
    files_.end(experiment, outcome);
    view_.trial_ended(candidate, outcome, /*before=*/false);
    return outcome;
  }

  Outcome run_one(const capstan::tune::Experiment& experiment, const Combination& candidate,
                  launch::SignalWatch& signals) {
    json::Value config = experiment.config;
    capstan::tune::set_at(config, "autotuning.enabled", json::Value(true));
    capstan::tune::set_at(config, "autotuning.metric_path",
                          json::Value(files_.record(experiment.name).string()));
    files_.begin(experiment, config);
    const std::string path = files_.config(experiment.name).string();
    std::optional<config::Resolved> resolved;
    try {
      resolved = job_->resolve(path);
    } catch (const ConfigError& error) {
      return {.end = End::failed, .why = "the configuration is refused: " + error.info().what};
    }
    capstan::tune::TrialJob trial;
    trial.job = job_->trial({path, config}, resolved->engine.profile.trial.last_step);
    trial.record = files_.record(experiment.name);
    trial.folder = files_.folder(experiment.name);
    trial.limit = limit();
    const auto began = std::chrono::steady_clock::now();
    Outcome outcome = run_trial(trial, signals);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    remove_left_files(resolved->engine.store);
    if (outcome.end != End::measured) return outcome;
    longest_ = std::max(longest_, took.count());
    const auto record = capstan::tune::read_record(trial.record);
    const std::string other = difference(*record, space_.stage_of(candidate.choice),
                                         space_.micros[static_cast<std::size_t>(candidate.micro)]);
    return other.empty() ? outcome : Outcome{.end = End::failed, .why = other};
  }

  std::chrono::milliseconds limit() const {
    double seconds = kFirstLimitSeconds;
    if (longest_ > 0) seconds = std::max(kLeastLimitSeconds, kSlowerThanBefore * longest_);
    if (request_.limit_seconds > 0) seconds = request_.limit_seconds;
    return std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
  }

  // What the first trial would start.
  int show() const {
    const Combination first{capstan::tune::Choice(space_.axes.size(), 0), space_.first_micro};
    const json::Value config = apply(space_, first, alternatives_.config.root);
    const std::string path = files_.config(tag(space_, first)).string();
    const launch::Machine machine = launch::this_machine();
    const launch::Options job =
        job_->trial({path, config}, resolved_.engine.profile.trial.last_step);
    std::fputs(launch::describe(launch::make_plan(job, machine), machine.env).c_str(), stdout);
    return 0;
  }

  // A rank that was killed has not removed its files on the disks.
  static void remove_left_files(const store::Options& options) {
    std::vector<std::string> folders = options.optimizer.nvme_paths;
    folders.insert(folders.end(), options.params.nvme_paths.begin(),
                   options.params.nvme_paths.end());
    for (const std::string& folder : folders) {
      try {
        store::remove_left_swap_files(folder);
      } catch (const IoError&) {  // it was never made
      }
    }
  }

  int report(const capstan::tune::Answer& answer) {
    const std::string summary = view_.summary(answer);
    std::fputs(summary.c_str(), stdout);
    files_.write("summary.txt", table_of(space_, answer) + summary);
    if (!answer.best) {
      fmt::print("what the jobs said is in {}\n", files_.results().string());
      return stopped_by_ != 0 ? 128 + stopped_by_ : 1;
    }
    const json::Value best = apply(space_, answer.best->candidate, alternatives_.config.root);
    const std::filesystem::path path =
        files_.write("ds_config_optimal.json", json::write(best) + "\n");
    const std::string command =
        fmt::format("{}", fmt::join(job_->command({path.string(), best}), " "));
    files_.write("cmd_optimal.txt", command + "\n");
    fmt::print("configuration: {}\ncommand: {}\n", path.string(), command);
    std::fflush(stdout);
    if (stopped_by_ != 0) return 128 + stopped_by_;
    return request_.run ? job_->start({path.string(), best}) : 0;
  }

  const Request& request_;
  const std::unique_ptr<Job> job_;
  const capstan::tune::Alternatives alternatives_;
  // Of the first of all alternatives; errors of a file without any name its lines.
  const config::Resolved resolved_ = job_->resolve(alternatives_.config.root == job_->config().root
                                                       ? alternatives_.config.source
                                                       : json::write(alternatives_.config.root));
  const capstan::tune::Options options_;
  const capstan::tune::Space space_;
  const capstan::tune::TrialFiles files_;
  View view_;
  double longest_ = 0;  // seconds of a trial that measured
  int stopped_by_ = 0;  // the signal
};

}  // namespace

int tune(const Request& request) { return Tuner(request).run(); }

}  // namespace capstan::cli::tune
