// capstan tune: find a fast configuration for a job by short trials of it.
#include <memory>

#include <CLI/CLI.hpp>

#include "capstan/cli/command.h"
#include "capstan/cli/launch_flags.h"
#include "capstan/cli/tune/tune.h"

namespace capstan::cli {

void add_tune_command(CLI::App& app, int& exit_code) {
  struct Flags {
    LaunchFlags launch;
    tune::Request request{.launch = launch};
  };
  CLI::App* command =
      app.add_subcommand("tune", "Find a fast configuration for a job by short trials of it");
  const auto flags = std::make_shared<Flags>();
  tune::Request& request = flags->request;
  command->add_flag("--run", request.run, "Then start the job with the best configuration");
  command->add_option("--config", request.config,
                      "The script's argument that is its configuration (default: the value of "
                      "--deepspeed_config, --deepspeed, --ds_config or --config)");
  command->add_flag("--full", request.full,
                    "Also try offloading, recomputation and the settings of stage 3, as \"fast\": "
                    "false does");
  command->add_option(
      "--machine", request.machine,
      "Try first what capstan plan expects most of on this machine: its name or file, as "
      "there (for capstan tune train)");
  command->add_option("--trials", request.trials, "Most trials, instead of tuner_num_trials")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--limit", request.limit_seconds,
                   "Seconds that a trial may take (default: 1800 for the first, then five times "
                   "the longest so far, at least 60)")
      ->check(CLI::PositiveNumber);
  command->add_flag("--overwrite", request.overwrite,
                    "Repeat trials that have ended in an earlier search");
  add_place_flags(*command, flags->launch);
  add_rank_flags(*command, flags->launch);
  command->footer(
      "Everything after the script is passed to it. The word train stands for capstan train, with "
      "its own options behind it.");
  command->formatter(std::make_shared<LaunchHelp>());
  command->prefix_command();
  command->callback([command, flags, &exit_code] {
    open_missing_standard_files();
    std::vector<std::string> words = command->remaining();
    if (!words.empty() && words.front() == "--") words.erase(words.begin());
    take_program(words, *command, flags->launch.options.program);
    exit_code = tune::tune(flags->request);
  });
}

}  // namespace capstan::cli
