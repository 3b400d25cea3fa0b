// capstan train: starts the ranks of a training run, or becomes one.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "capstan/base/rank_env.h"
#include "capstan/cli/command.h"
#include "capstan/cli/exec_engine.h"
#include "capstan/cli/train/arguments.h"
#include "capstan/cli/train/progress_view.h"
#include "capstan/launch/plan.h"
#include "capstan/launch/run.h"

namespace capstan::cli {
namespace {

int rank_count(const train::Arguments& arguments, const launch::Machine& machine) {
  if (arguments.ranks > 0) return arguments.ranks;
  if (!machine.devices.empty() && arguments.device != "cpu") {
    return static_cast<int>(machine.devices.size());
  }
  return std::min(2, machine.cores);
}

int start_ranks(int ranks, std::vector<std::string> words) {
  launch::Options options;
  words.insert(words.begin(), engine_path().string());
  options.program.words = std::move(words);
  options.program.python = false;
  options.ranks_per_host = ranks;
  // The ranks write into a pipe; only we know the terminal behind it.
  options.extra_env["CAPSTAN_COLUMNS"] = std::to_string(train::terminal_columns(stdout));
  launch::RunOptions run_options;
  run_options.prefix = false;
  return launch::run(launch::make_plan(options, launch::this_machine()), run_options).exit_code;
}

// The words of the command line from "train" on: what the engine is given.
std::vector<std::string> own_words(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  return {std::find(words.begin(), words.end(), "train"), words.end()};
}

}  // namespace

void add_train_command(CLI::App& app, int argc, char** argv, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "train", "Train a GPT-2 on text: this folder's by default, sharded over the ranks");
  const auto arguments = std::make_shared<train::Arguments>();
  train::add_options(*command, *arguments);
  command->footer("Without --config:\n" + train::default_config());
  command->callback([arguments, argc, argv, &exit_code] {
    const std::vector<std::string> words = own_words(argc, argv);
    const bool started_by_other = read_rank_env(process_env()).world_size > 1;
    const int ranks = rank_count(*arguments, launch::this_machine());
    if (started_by_other || ranks == 1) exec_engine(words);
    exit_code = start_ranks(ranks, words);
  });
}

}  // namespace capstan::cli
