// The `capstan-engine` program: the commands that need libtorch. `capstan` starts it; people need
// not.
#include <CLI/CLI.hpp>

#include "capstan/cli/command.h"
#include "capstan/cli/program.h"

int main(int argc, char** argv) {
  namespace cli = capstan::cli;
  const auto add_commands = [](CLI::App& app, int& exit_code) {
    cli::add_facts_command(app, exit_code);
    cli::add_probe_command(app, exit_code);
    cli::add_train_rank_command(app, exit_code);
    cli::add_generate_rank_command(app, exit_code);
  };
  return cli::run_program("The part of Capstan that uses libtorch; start it through `capstan`.",
                          add_commands, argc, argv);
}
