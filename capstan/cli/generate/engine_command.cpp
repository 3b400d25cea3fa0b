// The generate command of the engine programs: one rank.
#include <memory>

#include <CLI/CLI.hpp>

#include "capstan/cli/command.h"
#include "capstan/cli/engine_nccl.h"
#include "capstan/cli/generate/arguments.h"
#include "capstan/cli/generate/run.h"

namespace capstan::cli {

void add_generate_rank_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("generate", "One rank of capstan generate");
  const auto arguments = std::make_shared<generate::Arguments>();
  generate::add_options(*command, *arguments);
  command->callback(
      [arguments, &exit_code] { exit_code = generate::run(*arguments, engine_nccl()); });
}

}  // namespace capstan::cli
