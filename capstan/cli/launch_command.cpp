// capstan launch: start any program on N ranks, here or on other hosts.
#include <memory>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "capstan/cli/command.h"
#include "capstan/cli/launch_flags.h"
#include "capstan/cli/tune/tune.h"
#include "capstan/launch/agent.h"

namespace capstan::cli {

void add_launch_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("launch", "Start a program on N ranks, on this machine or on others");
  const auto flags = std::make_shared<LaunchFlags>();
  const auto autotuning = std::make_shared<std::string>();
  add_place_flags(*command, *flags);
  add_rank_flags(*command, *flags);
  command
      ->add_option("--autotuning", *autotuning,
                   "Find a fast configuration first, as capstan tune does; run: then start the "
                   "program with it")
      ->check(CLI::IsMember({"tune", "run"}));
  command->formatter(std::make_shared<LaunchHelp>());
  command->prefix_command();
  command->callback([command, flags, autotuning, &exit_code] {
    open_missing_standard_files();
    take_program(command->remaining(), *command, flags->options.program);
    if (autotuning->empty()) {
      exit_code = run_launch(*flags);
    } else {
      exit_code = tune::tune({.launch = *flags, .run = *autotuning == "run"});
    }
  });
}

void add_launch_agent_command(CLI::App& app, int& exit_code) {
  struct AgentFlags {
    launch::AgentOptions options;
    std::string pool;
    double grace_seconds = 15;
    bool no_python = false;
    bool no_local_rank = false;
  };
  CLI::App* command = app.add_subcommand("launch-agent", "Started by capstan launch on each host");
  command->group("");  // not for people: left out of the help
  const auto flags = std::make_shared<AgentFlags>();
  launch::AgentOptions& options = flags->options;
  command->add_option("--pool", flags->pool)->required();
  command->add_flag("--devices", options.slots_are_devices);
  command->add_option("--node_rank", options.node_rank);
  command->add_flag("--no_python", flags->no_python);
  command->add_flag("--module", options.program.module);
  command->add_flag("--no_local_rank", flags->no_local_rank);
  command->add_flag("--bind_cores_to_rank", options.binding.bind);
  command->add_option("--bind_core_list", options.binding.core_list);
  command->add_option("--grace", flags->grace_seconds);
  command->prefix_command();
  command->callback([command, flags, &exit_code] {
    launch::AgentOptions& agent = flags->options;
    take_program(command->remaining(), *command, agent.program);
    agent.command = std::exchange(agent.program.words, {});
    agent.program.python = !flags->no_python;
    agent.program.local_rank_argument = !flags->no_local_rank;
    agent.pool = launch::parse_pool(flags->pool);
    agent.grace = to_grace(flags->grace_seconds);
    exit_code = launch::run_agent(agent);
  });
}

}  // namespace capstan::cli
