// The `capstan` program: small, links no libtorch, answers in milliseconds.
#include <CLI/CLI.hpp>

#include "capstan/cli/command.h"
#include "capstan/cli/program.h"

int main(int argc, char** argv) {
  namespace cli = capstan::cli;
  const auto add_commands = [&](CLI::App& app, int& exit_code) {
    cli::add_config_command(app, exit_code);
    cli::add_checkpoint_command(app, exit_code);
    cli::add_launch_command(app, exit_code);
    cli::add_launch_agent_command(app, exit_code);
    cli::add_tune_command(app, exit_code);
    cli::add_report_command(app, exit_code);
    cli::add_doctor_command(app, exit_code);
    cli::add_bench_command(app, exit_code);
    cli::add_page_command(app, exit_code);
    cli::add_pipeline_command(app, exit_code);
    cli::add_estimate_command(app, exit_code);
    cli::add_plan_command(app, exit_code);
    cli::add_train_command(app, argc, argv, exit_code);
    cli::add_generate_command(app, argc, argv, exit_code);
  };
  return cli::run_program("Train models that do not fit on one device.", add_commands, argc, argv);
}
