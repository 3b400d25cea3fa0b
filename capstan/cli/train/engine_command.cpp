// The train command of the engine programs: one rank.
#include <memory>

#include <CLI/CLI.hpp>

#include "capstan/cli/command.h"
#include "capstan/cli/engine_nccl.h"
#include "capstan/cli/train/arguments.h"
#include "capstan/cli/train/run.h"

namespace capstan::cli {

void add_train_rank_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("train", "One rank of capstan train");
  const auto arguments = std::make_shared<train::Arguments>();
  train::add_options(*command, *arguments);
  command->callback([arguments, &exit_code] { exit_code = train::run(*arguments, engine_nccl()); });
}

}  // namespace capstan::cli
