// The `capstan-engine` program: the commands that need libtorch. `capstan` starts it; people need
// not.
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include "capstan/base/error.h"
#include "capstan/cli/command.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"The part of capstan that holds libtorch; start it through `capstan`."};
  app.require_subcommand(1);
  int exit_code = 0;
  capstan::cli::add_facts_command(app, exit_code);
  capstan::cli::add_probe_command(app, exit_code);
  capstan::cli::add_train_rank_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : capstan::kExitUserError;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  return capstan::run_guarded(run, argc, argv, [](const std::string& text) {
    std::fprintf(stderr, "capstan: %s\n", text.c_str());
  });
}
