// The `capstan` program: small, links no libtorch, answers in milliseconds.
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include "capstan/base/error.h"
#include "capstan/cli/command.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Train models that do not fit on one device."};
  app.require_subcommand(1);
  int exit_code = 0;
  capstan::cli::add_config_command(app, exit_code);
  capstan::cli::add_launch_command(app, exit_code);
  capstan::cli::add_launch_agent_command(app, exit_code);
  capstan::cli::add_report_command(app, exit_code);
  capstan::cli::add_bench_command(app, exit_code);
  capstan::cli::add_train_command(app, argc, argv, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Asking for help is no mistake; everything else is the user's, with one exit code.
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
