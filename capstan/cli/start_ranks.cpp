#include "capstan/cli/start_ranks.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "capstan/base/rank_env.h"
#include "capstan/cli/exec_engine.h"
#include "capstan/cli/train/progress_view.h"
#include "capstan/launch/plan.h"
#include "capstan/launch/run.h"

namespace capstan::cli {

std::vector<std::string> own_words(int argc, char** argv, const std::string& command) {
  std::vector<std::string> words(argv + 1, argv + argc);
  return {std::find(words.begin(), words.end(), command), words.end()};
}

bool started_as_rank() { return read_rank_env(process_env()).world_size > 1; }

int default_ranks(const std::string& device, int on_cpu) {
  const launch::Machine machine = launch::this_machine();
  if (!machine.devices.empty() && device != "cpu") return static_cast<int>(machine.devices.size());
  return std::min(on_cpu, machine.cores);
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

}  // namespace capstan::cli
