// Our own training, `capstan train`: ranks of the engine, a few steps of each configuration.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include "capstan/base/error.h"
#include "capstan/cli/exec_engine.h"
#include "capstan/cli/start_ranks.h"
#include "capstan/cli/train/arguments.h"
#include "capstan/cli/train/config.h"
#include "capstan/cli/tune/job.h"
#include "capstan/json/writer.h"
#include "capstan/launch/machine.h"
#include "capstan/tune/candidate.h"

namespace capstan::cli::tune {
namespace {

// What a run leaves behind, and a trial does not.
constexpr const char* kOfRuns[] = {
    "--save",      "--save-every", "--keep-last",    "--resume",        "--metrics", "--curve",
    "--max-steps", "--eval-every", "--eval-batches", "--sample-tokens", "--prompt"};

train::Arguments read(const std::vector<std::string>& words) {
  CLI::App app{"Train", "capstan train"};
  train::Arguments arguments;
  train::add_options(app, arguments);
  std::vector<std::string> reversed(words.rbegin(), words.rend() - 1);  // without "train"
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    throw ConfigError({.what = error.what(),
                       .where = "capstan tune train",
                       .fix = "capstan train --help shows what can be given"});
  }
  return arguments;
}

class TrainingJob final : public Job {
 public:
  explicit TrainingJob(LaunchFlags& flags)
      : flags_(flags), words_(flags.options.program.words), arguments_(read(words_)) {
    int ranks = arguments_.ranks > 0 ? arguments_.ranks : flags.options.ranks_per_host;
    if (ranks <= 0) ranks = default_ranks(arguments_.device, 2);
    const bool on_gpus = arguments_.device != "cpu" && !launch::this_machine().devices.empty();
    facts_ = {.ranks = ranks, .on_gpus = on_gpus, .own_models = true};
    train::sequence_length(arguments_);  // throws where it cannot be
  }

  json::Document config() const override {
    if (!arguments_.config.empty()) return json::read_argument(arguments_.config);
    return json::read_document(train::default_config(arguments_.pipe.value_or(1)), "the default configuration");
  }

  config::Resolved resolve(const std::string& config) const override {
    train::Arguments arguments = arguments_;
    arguments.config = config;
    return train::training_config(arguments, {facts_.ranks, facts_.on_gpus});
  }

  capstan::tune::SpaceFacts facts() const override { return facts_; }
  std::int64_t tokens_per_sample() const override { return train::sequence_length(arguments_); }

  capstan::tune::Predict predict(const std::string& machine, const capstan::tune::Space& space,
                                 const json::Value& config) const override {
    const capstan::tune::Machine known = capstan::tune::find_machine(machine);
    return [this, known, &space, &config](const capstan::tune::Combination& at) {
      return expect(known, json::write(apply(space, at, config)), space.batch_of(at));
    };
  }

  launch::Options trial(const ConfigFile& config, std::int64_t last_step) const override {
    launch::Options options = flags_.options;
    options.program = {.words = words_with(config), .python = false};
    std::vector<std::string>& words = options.program.words;
    for (const char* flag : kOfRuns) drop_flag(words, flag);
    set_flag(words, "--max-steps", std::to_string(last_step + 1));
    set_flag(words, "--eval-every", "0");
    set_flag(words, "--eval-batches", "1");
    set_flag(words, "--sample-tokens", "0");
    words.insert(words.begin(), engine_path().string());
    options.ranks_per_host = facts_.ranks;
    options.extra_env["CAPSTAN_COLUMNS"] = "0";
    return options;
  }

  std::vector<std::string> command(const ConfigFile& config) const override {
    std::vector<std::string> words = words_with(config);
    words.insert(words.begin(), "capstan");
    return words;
  }

  // Becomes `capstan train`.
  int start(const ConfigFile& config) override {
    const std::vector<std::string> words = command(config);
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    std::fflush(nullptr);
    ::execv("/proc/self/exe", argv.data());
    throw ConfigError({.what = fmt::format("cannot start the training: {}",
                                           std::generic_category().message(errno)),
                       .where = "/proc/self/exe",
                       .fix = "mount /proc"});
  }

 private:
  // As `capstan plan` would weigh it.
  std::optional<capstan::tune::Prediction> expect(const capstan::tune::Machine& machine,
                                                  const std::string& config,
                                                  std::int64_t samples) const {
    try {
      const config::Resolved resolved = resolve(config);
      const std::int64_t vocab =
          arguments_.data.vocab > 0 ? arguments_.data.vocab : train::kLearntVocab;
      const auto weighed = capstan::tune::weigh(
          {.model = train::model_blueprint(arguments_.model, arguments_.seed)
                        ->with({.vocab = vocab, .recompute = resolved.engine.recompute}),
           .tokens = tokens_per_sample(),
           .options = resolved.engine,
           .ranks = facts_.ranks},
          machine);
      const std::int64_t bytes = weighed.memory.peak();
      if (weighed.tokens_per_second <= 0) return std::nullopt;
      const double tokens = static_cast<double>(samples * tokens_per_sample());
      return capstan::tune::Prediction{.bytes = bytes,
                                       .limit_bytes = weighed.fits() ? bytes : bytes - 1,
                                       .seconds = tokens / weighed.tokens_per_second};
    } catch (const ConfigError&) {  // such a combination cannot be
      return std::nullopt;
    }
  }

  std::vector<std::string> words_with(const ConfigFile& config) const {
    std::vector<std::string> words = words_;
    set_flag(words, "--config", config.path);
    drop_flag(words, "-n");
    set_flag(words, "--ranks", std::to_string(facts_.ranks));
    return words;
  }

  LaunchFlags& flags_;
  const std::vector<std::string> words_;
  const train::Arguments arguments_;
  capstan::tune::SpaceFacts facts_;
};

}  // namespace

std::unique_ptr<Job> make_training_job(LaunchFlags& flags) {
  return std::make_unique<TrainingJob>(flags);
}

}  // namespace capstan::cli::tune
