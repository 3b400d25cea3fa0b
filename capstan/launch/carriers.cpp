#include "capstan/launch/carriers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/launch/ranks.h"

namespace capstan::launch {
namespace {

std::string need_program(const std::string& name, const Machine& machine, const std::string& fix) {
  std::string path = find_program(name, machine.env);
  if (path.empty()) {
    throw ConfigError(
        {.what = fmt::format("there is no {} on this machine", name), .where = "PATH", .fix = fix});
  }
  return path;
}

void append(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

// The shell on the other side starts bare: it gets our folder, and the libraries without which the
// agent itself may not start. All other variables are sent: every user of both hosts can see the
// words of a command, and a variable may hold a password.
std::string remote_script(const Machine& machine, const std::vector<std::string>& agent) {
  std::string script = fmt::format("cd {} && exec ", shell_quote(machine.folder));
  if (const auto libraries = machine.env.find("LD_LIBRARY_PATH"); libraries != machine.env.end()) {
    script += fmt::format("env {} ", shell_quote("LD_LIBRARY_PATH=" + libraries->second));
  }
  return script + shell_join(agent);
}

// What ranks on other hosts need of this machine's variables, and what the user set for them.
Environment variables_elsewhere(const Options& options, const Environment& here) {
  Environment env = forwarded_variables(here);
  for (const auto& [name, value] : options.extra_env) env[name] = value;
  return env;
}

Environment carrier_environment(const Options& options, const Machine& machine) {
  Environment env = without_launcher_variables(machine.env);
  for (const auto& [name, value] : options.extra_env) env[name] = value;
  return env;
}

}  // namespace

bool is_this_machine(const std::string& host, const Machine& machine) {
  return host == "localhost" || host == "127.0.0.1" || host == "::1" || host == machine.host_name;
}

std::vector<std::string> agent_command(const Options& options, const Machine& machine,
                                       const Pool& pool, const AgentCall& call, int node_rank) {
  std::vector<std::string> words = {machine.self, "launch-agent", "--pool", format_pool(pool)};
  if (node_rank >= 0) append(words, {"--node_rank", std::to_string(node_rank)});
  if (call.slots_are_devices) words.emplace_back("--devices");
  if (!options.program.python) words.emplace_back("--no_python");
  if (options.program.module) words.emplace_back("--module");
  if (!options.program.local_rank_argument) words.emplace_back("--no_local_rank");
  if (options.bind_cores) words.emplace_back("--bind_cores_to_rank");
  if (!options.core_list.empty()) append(words, {"--bind_core_list", options.core_list});
  append(words,
         {"--grace", fmt::format("{}", std::chrono::duration<double>(options.grace).count())});
  append(words, call.command);
  return words;
}

std::vector<Process> ssh_processes(const Options& options, const Machine& machine, const Pool& pool,
                                   const AgentCall& call) {
  std::vector<Process> processes;
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const std::string& host = pool[i].name;
    const std::vector<std::string> agent =
        agent_command(options, machine, pool, call, static_cast<int>(i));
    Process process;
    process.channel = Channel::agent_on_pipe;
    process.env = carrier_environment(options, machine);
    if (is_this_machine(host, machine)) {
      process.name = "agent on " + host;
      process.argv = agent;
    } else {
      process.name = "ssh " + host;
      // BatchMode: a question for a password would hang a job that nobody watches. The alive
      // messages end the connection about a minute after a host went dark.
      process.argv = {need_program("ssh", machine, "apt-get install openssh-client"),
                      "-T",
                      "-o",
                      "BatchMode=yes",
                      "-o",
                      "ConnectTimeout=20",
                      "-o",
                      "ServerAliveInterval=15",
                      "-o",
                      "ServerAliveCountMax=4"};
      if (options.ssh_port > 0) append(process.argv, {"-p", std::to_string(options.ssh_port)});
      append(process.argv, options.launcher_args);
      append(process.argv, {"--", host, remote_script(machine, agent)});
      process.sent = variables_elsewhere(options, machine.env);
    }
    processes.push_back(std::move(process));
  }
  return processes;
}

Process srun_process(const Options& options, const Machine& machine, const Pool& pool,
                     const AgentCall& call, bool use_mpi) {
  std::vector<std::string> names;
  for (const Host& host : pool) {
    names.push_back(host.name);
    if (host.slots.size() != pool.front().slots.size()) {
      throw ConfigError(
          {.what = fmt::format(
               "srun starts the same number of ranks on every host, but {} has {} and {} has {}",
               pool.front().name, pool.front().slots.size(), host.name, host.slots.size()),
           .where = options.include.empty() && options.exclude.empty() ? "SLURM_TASKS_PER_NODE"
                                                                       : "--include/--exclude",
           .fix = "choose whole hosts, or give a number per host with -n"});
    }
  }
  Process process;
  process.name = "srun";
  process.channel = Channel::agents_on_link;
  process.env = carrier_environment(options, machine);
  process.argv = {
      need_program("srun", machine,
                   "run inside a SLURM cluster, or choose another "
                   "--launcher"),
      fmt::format("--nodes={}", pool.size()), fmt::format("--ntasks={}", count_slots(pool)),
      fmt::format("--ntasks-per-node={}", pool.front().slots.size()),
      fmt::format("--nodelist={}", fmt::join(names, ",")), "--distribution=block", "--export=ALL",
      // Agents report how ranks end, and the launcher decides who is stopped.
      "--kill-on-bad-exit=0", "--input=none", use_mpi ? "--mpi=pmix" : "--mpi=none"};
  // A shell that is itself a step holds the job's cores: share them.
  if (machine.env.contains("SLURM_STEP_NUM_TASKS")) process.argv.emplace_back("--overlap");
  append(process.argv, options.launcher_args);
  append(process.argv, agent_command(options, machine, pool, call, /*node_rank=*/-1));
  return process;
}

Process mpirun_process(const Options& options, const Machine& machine, const Pool& pool,
                       const AgentCall& call) {
  Process process;
  process.name = "mpirun";
  process.channel = Channel::agents_on_link;
  process.env = carrier_environment(options, machine);
  process.argv = {need_program("mpirun", machine,
                               "apt-get install openmpi-bin, or --launcher local "
                               "for programs that need no MPI")};
  if (machine.is_root) process.argv.emplace_back("--allow-run-as-root");
  // Without recovery mpirun kills the survivors of a failure before they can report it. Slots fill
  // host after host, which is the order of ranks in the pool; binding is the agents' business.
  append(process.argv, {"--enable-recovery", "--oversubscribe", "--bind-to", "none", "--map-by",
                        "slot", "-n", std::to_string(count_slots(pool))});
  if (pool.size() > 1 || !is_this_machine(pool.front().name, machine)) {
    std::vector<std::string> hosts;
    for (const Host& host : pool)
      hosts.push_back(fmt::format("{}:{}", host.name, host.slots.size()));
    append(process.argv, {"-H", fmt::format("{}", fmt::join(hosts, ","))});
    for (const auto& [name, value] : variables_elsewhere(options, process.env)) {
      append(process.argv, {"-x", name});
    }
    append(process.argv, {"-x", "CAPSTAN_LINK", "-x", "CAPSTAN_LINK_TOKEN"});
  } else {
    // Open MPI wants to see a remote shell even where all ranks are here; containers have no ssh.
    append(process.argv, {"--mca", "plm_rsh_agent", "sh"});
  }
  append(process.argv, options.launcher_args);
  append(process.argv, agent_command(options, machine, pool, call, /*node_rank=*/-1));
  return process;
}

}  // namespace capstan::launch
