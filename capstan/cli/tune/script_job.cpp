// A user's script, started as `capstan launch` does, with its configuration in one of its words.
#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/cli/tune/job.h"
#include "capstan/json/writer.h"
#include "capstan/launch/machine.h"
#include "capstan/launch/plan.h"
#include "capstan/tune/search_space.h"

namespace capstan::cli::tune {
namespace {

// What scripts call the flag.
constexpr std::array kFlags = {"--deepspeed_config", "--deepspeed-config", "--deepspeed",
                               "--ds_config",        "--ds-config",        "--config"};
// The Trainer has flags for these, and compares them with the configuration.
constexpr std::array<std::array<const char*, 2>, 4> kUsualMappings = {{
    {"train_micro_batch_size_per_gpu", "--per_device_train_batch_size"},
    {"train_micro_batch_size_per_gpu", "--train_micro_batch_size_per_gpu"},
    {"gradient_accumulation_steps", "--gradient_accumulation_steps"},
    {"train_batch_size", "--train_batch_size"},
}};

bool is_config(const std::string& value) {
  std::error_code missing;
  return value.starts_with('{') || std::filesystem::is_regular_file(value, missing);
}

// Where the configuration stands: this part of this word.
struct Spot {
  std::size_t word = 0;
  std::size_t begin = 0;  // behind a "="
};

class ScriptJob final : public Job {
 public:
  ScriptJob(LaunchFlags& flags, const std::string& config)
      : flags_(flags), words_(flags.options.program.words), spot_(find_config(config)) {
    const launch::Machine machine = launch::this_machine();
    facts_ = {.ranks = launch::make_plan(flags.options, machine).world_size(),
              // The hosts of a file are not looked into; who lists them has GPUs there.
              .on_gpus = !machine.devices.empty() || !flags.options.hosts.empty()};
  }

  json::Document config() const override {
    return json::read_argument(words_[spot_.word].substr(spot_.begin));
  }

  config::Resolved resolve(const std::string& config) const override {
    const json::Document document = json::read_argument(config);
    const auto for_ranks = [&](int ranks) {
      config::Context context;
      context.world_size = ranks;
      context.world_size_origin = {config::OriginKind::command_line, "the number of ranks"};
      return config::check(document, context);
    };
    const json::Value* models = capstan::tune::find_at(document.root, "autotuning.mp_size");
    const std::int64_t* size = models != nullptr ? models->integer() : nullptr;
    const auto each = static_cast<int>(size != nullptr && *size > 0 ? *size : 1);
    if (facts_.ranks % each != 0) {
      throw ConfigError({.what = fmt::format("{} ranks cannot be shared out to models of {} each",
                                             facts_.ranks, each),
                         .where = "autotuning.mp_size",
                         .fix = "start a multiple of mp_size ranks"});
    }
    config::Outcome outcome = for_ranks(facts_.ranks / each);
    if (outcome.resolved) return *std::move(outcome.resolved);
    throw ConfigError(config::join_problems(outcome.problems, document.source));
  }

  capstan::tune::SpaceFacts facts() const override { return facts_; }
  std::int64_t tokens_per_sample() const override { return 0; }

  capstan::tune::Predict predict(const std::string& machine, const capstan::tune::Space&,
                                 const json::Value&) const override {
    throw ConfigError({.what = "nothing can be predicted of a script's model",
                       .where = "--machine " + machine,
                       .fix = "leave it out; it is for capstan tune train"});
  }

  launch::Options trial(const ConfigFile& config, std::int64_t /*last_step*/) const override {
    launch::Options options = flags_.options;
    options.program.words = words_with(config);
    return options;
  }

  std::vector<std::string> command(const ConfigFile& config) const override {
    std::vector<std::string> words = {"capstan", "launch", "-n", std::to_string(facts_.ranks)};
    const std::vector<std::string> program = words_with(config);
    words.insert(words.end(), program.begin(), program.end());
    return words;
  }

  int start(const ConfigFile& config) override {
    flags_.options.program.words = words_with(config);
    return run_launch(flags_);
  }

 private:
  Spot find_config(const std::string& named) const {
    for (std::size_t at = 1; at < words_.size(); ++at) {
      const std::string& word = words_[at];
      if (!named.empty()) {
        if (word == named) return {at, 0};
        if (word.ends_with("=" + named)) return {at, word.size() - named.size()};
        continue;
      }
      for (const std::string_view flag : kFlags) {
        if (word == flag && at + 1 < words_.size() && is_config(words_[at + 1])) return {at + 1, 0};
        const std::string with_value = std::string(flag) + "=";
        if (word.starts_with(with_value) && is_config(word.substr(with_value.size()))) {
          return {at, with_value.size()};
        }
      }
    }
    if (!named.empty()) {
      throw ConfigError(
          {.what = "the script's arguments do not have this configuration",
           .where = "--config " + named,
           .fix = "write it as in the arguments: each trial puts another file there"});
    }
    throw ConfigError(
        {.what = "the script's arguments name no configuration that a trial could replace",
         .where = words_.front(),
         .fix = "let the script read the file of an argument such as --deepspeed_config FILE; for "
                "another flag, also give capstan tune --config FILE"});
  }

  std::vector<std::string> words_with(const ConfigFile& config) const {
    std::vector<std::string> words = words_;
    words[spot_.word].replace(spot_.begin, std::string::npos, config.path);
    for (const auto& [key, flag] : mappings(config.value)) {
      const json::Value* value = capstan::tune::find_at(config.value, key);
      if (value == nullptr) continue;
      const std::string text =
          value->text() != nullptr ? *value->text() : json::write(*value, {.indent = 0});
      set_flag(words, flag, text);
    }
    return words;
  }

  // Those of the configuration; the Trainer's flags are known where they are given.
  std::map<std::string, std::string> mappings(const json::Value& config) const {
    std::map<std::string, std::string> found;
    for (const auto& [key, flag] : kUsualMappings) {
      const auto is_it = [&, flag = flag](const std::string& word) {
        return word == flag || word.starts_with(std::string(flag) + "=");
      };
      if (std::any_of(words_.begin(), words_.end(), is_it)) found[key] = flag;
    }
    const json::Value* given = capstan::tune::find_at(config, "autotuning.arg_mappings");
    if (given == nullptr || given->object() == nullptr) return found;
    for (const json::Member& member : *given->object()) {
      if (const std::string* flag = member.value.text()) {
        found[std::string(trim(member.key))] = trim(*flag);
      }
    }
    return found;
  }

  LaunchFlags& flags_;
  const std::vector<std::string> words_;
  const Spot spot_;
  capstan::tune::SpaceFacts facts_;
};

}  // namespace

std::unique_ptr<Job> make_script_job(LaunchFlags& flags, const std::string& config) {
  return std::make_unique<ScriptJob>(flags, config);
}

}  // namespace capstan::cli::tune
