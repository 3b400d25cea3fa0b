#include "capstan/launch/plan.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/host_list.h"
#include "capstan/base/rank_env.h"
#include "capstan/base/text.h"
#include "capstan/launch/carriers.h"
#include "capstan/launch/cores.h"
#include "capstan/launch/ranks.h"

namespace capstan::launch {
namespace {

// Where the ranks may run, and whether slots are GPUs to be shown to them.
struct Place {
  Pool pool;
  bool slots_are_devices = false;
};

std::optional<std::string> variable(const Machine& machine, const std::string& name) {
  const auto found = machine.env.find(name);
  if (found == machine.env.end() || found->second.empty()) return {};
  return found->second;
}

constexpr int kMostRanksPerHost =
    65536;  // chosen: beyond any machine, below Linux's process numbers

void check_options(const Options& options) {
  const auto fail = [](std::string what, std::string where, std::string fix) {
    throw ConfigError({.what = std::move(what), .where = std::move(where), .fix = std::move(fix)});
  };
  const bool filtered = !options.include.empty() || !options.exclude.empty();
  if (!options.include.empty() && !options.exclude.empty()) {
    fail("both --include and --exclude are given", "--include/--exclude", "use one of the two");
  }
  if (filtered && (options.ranks_per_host >= 0 || options.host_count >= 0)) {
    fail("a filter and a number of ranks or hosts are given together",
         "--include/--exclude with -n or --num_nodes",
         "remove the number: the filter already says how many ranks there are");
  }
  if (options.ranks_per_host == 0 || options.ranks_per_host < -1) {
    fail(fmt::format("{} ranks were requested", options.ranks_per_host), "-n/--num_gpus",
         "start at least one");
  }
  if (options.ranks_per_host > kMostRanksPerHost) {
    fail(fmt::format("{} ranks were requested on one host", options.ranks_per_host),
         "-n/--num_gpus", fmt::format("start at most {}", kMostRanksPerHost));
  }
  if (options.host_count == 0 || options.host_count < -1) {
    fail(fmt::format("{} hosts were requested", options.host_count), "--num_nodes",
         "use at least one");
  }
  if (options.master_port < 0 || options.master_port > 65535) {
    fail(fmt::format("the port is {}", options.master_port), "--master_port",
         "use 1 to 65535, or leave it out for a free one");
  }
  if (options.ssh_port < 0 || options.ssh_port > 65535) {
    fail(fmt::format("the port is {}", options.ssh_port), "--ssh_port",
         "use 1 to 65535, or leave it out for ssh's own");
  }
  if (options.node_rank < -1) {
    fail(fmt::format("the node rank is {}", options.node_rank), "--node_rank",
         "number the hosts from 0");
  }
  if (!options.core_list.empty() && !options.bind_cores) {
    fail("a list of cores is given, but ranks are not bound to cores", "--bind_core_list",
         "add --bind_cores_to_rank");
  }
}

std::set<std::string> names_of(const Environment& env) {
  std::set<std::string> names;
  for (const auto& [name, value] : env) names.insert(name);
  return names;
}

bool in_slurm_step(const Machine& machine) { return machine.env.contains("SLURM_STEP_NUM_TASKS"); }

// A shell inside a one-host step (srun --pty) works on its own host; a batch script or an
// allocation of more hosts than its step uses srun.
bool has_slurm_job(const Machine& machine) {
  if (!variable(machine, "SLURM_JOB_ID") || !variable(machine, "SLURM_JOB_NODELIST")) return false;
  if (!in_slurm_step(machine)) return true;
  return variable(machine, "SLURM_JOB_NUM_NODES").value_or("1") !=
         variable(machine, "SLURM_STEP_NUM_NODES").value_or("1");
}

bool talks_mpi(const Options& options, const Machine& machine, int world_size) {
  return !options.program.python && machine.devices.empty() && world_size > 1;
}

Place slurm_place(const Options& options, const Machine& machine) {
  const std::string hosts = variable(machine, "SLURM_JOB_NODELIST").value_or("");
  if (hosts.empty()) {
    throw ConfigError({.what = "this is not a SLURM job",
                       .where = "--launcher slurm",
                       .fix =
                           "run inside sbatch or salloc, or submit: sbatch --wrap 'capstan launch "
                           "…'"});
  }
  std::vector<int> counts;
  bool devices = false;
  if (options.ranks_per_host > 0) {
    counts = {options.ranks_per_host};
  } else if (const auto gpus = variable(machine, "SLURM_GPUS_ON_NODE"); gpus && *gpus != "0") {
    counts = expand_counts(*gpus, "SLURM_GPUS_ON_NODE");
    devices = true;
  } else {
    counts = expand_counts(variable(machine, "SLURM_TASKS_PER_NODE").value_or("1"),
                           "SLURM_TASKS_PER_NODE");
  }
  Place place;
  for (const std::string& host : expand_host_list(hosts, "SLURM_JOB_NODELIST")) {
    const std::size_t index = std::min(place.pool.size(), counts.size() - 1);
    place.pool.push_back({host, numbered_slots(counts[index])});
  }
  // SLURM shows each task its devices itself; a filter by slot is ours to carry out.
  place.slots_are_devices = devices && !(options.include.empty() && options.exclude.empty());
  return place;
}

Place local_place(const Options& options, const Machine& machine) {
  const int asked = options.ranks_per_host;
  const int devices = static_cast<int>(machine.devices.size());
  const bool filtered = !options.include.empty() || !options.exclude.empty();
  if (devices == 0) {
    if (filtered) {
      throw ConfigError({.what = "this machine has no visible GPU to choose from",
                         .where = "--include/--exclude",
                         .fix = "-n N starts N ranks on the CPU; a --hostfile names other hosts"});
    }
    return {{{"localhost", numbered_slots(std::max(1, asked))}}, false};
  }
  if (asked > devices && options.launcher == Launcher::mpi) {
    return {{{"localhost", numbered_slots(asked)}}, false};  // ranks share the GPUs they see
  }
  if (asked > devices) {
    throw ConfigError(
        {.what = fmt::format("{} ranks were requested, but this machine has {}", asked,
                             counted(devices, "GPU")),
         .where = "-n/--num_gpus",
         .fix =
             fmt::format("-n {}; or CUDA_VISIBLE_DEVICES= for ranks on the CPU; or --launcher mpi "
                         "for ranks that share a GPU",
                         devices)});
  }
  return {{{"localhost", machine.devices}}, true};
}

Place choose_place(const Options& options, const Machine& machine) {
  const bool by_slurm = options.hosts.empty() &&
                        (options.launcher == Launcher::slurm ||
                         (options.launcher == Launcher::automatic && has_slurm_job(machine)));
  Place place;
  if (!options.hosts.empty()) {
    place = {options.hosts, true};
  } else {
    place = by_slurm ? slurm_place(options, machine) : local_place(options, machine);
  }
  if (!options.include.empty()) place.pool = include_hosts(place.pool, options.include);
  if (!options.exclude.empty()) place.pool = exclude_hosts(place.pool, options.exclude);
  place.pool = first_hosts(place.pool, options.host_count);
  place.pool = first_slots(place.pool, options.ranks_per_host);
  for (const Host& host : place.pool) {
    if (is_host_name(host.name)) continue;
    throw ConfigError({.what = fmt::format("\"{}\" is no name of a host", host.name),
                       .where = by_slurm ? "SLURM_JOB_NODELIST" : "the list of hosts",
                       .fix = "name hosts as DNS or ssh's configuration knows them"});
  }
  return place;
}

Launcher choose_launcher(const Options& options, const Machine& machine, const Pool& pool) {
  if (options.launcher != Launcher::automatic) return options.launcher;
  if (options.node_rank >= 0) return Launcher::local;
  if (options.hosts.empty() && has_slurm_job(machine)) return Launcher::slurm;
  const bool elsewhere = pool.size() > 1 || !is_this_machine(pool.front().name, machine);
  const bool mpi = talks_mpi(options, machine, count_slots(pool)) &&
                   !find_program("mpirun", machine.env).empty();
  if (mpi) return Launcher::mpi;
  return elsewhere ? Launcher::ssh : Launcher::local;
}

void add_local_processes(Plan& plan, const Options& options, const Machine& machine,
                         const Share& share, Environment base) {
  for (const auto& [name, value] : options.extra_env) base[name] = value;
  base["CAPSTAN_LAUNCHER"] = to_string(plan.launcher);
  plan.processes =
      rank_processes(share, options.program, resolve_program(options.program, machine), base);
  assign_cores(plan.processes, share, {options.bind_cores, options.core_list}, machine);
}

// Each task of an outer srun or mpirun runs `capstan launch` by itself: one per rank, where an
// outer task is a rank already; or one per host, which then starts that host's ranks.
std::optional<Plan> plan_inside_a_world(const Options& options, const Machine& machine) {
  if (options.launcher != Launcher::automatic || !options.hosts.empty()) return {};
  const RankEnv outer = read_rank_env([&](const std::string& n) { return variable(machine, n); });
  if (outer.world_size < 2) return {};
  Plan plan;
  plan.launcher = Launcher::local;
  plan.grace = options.grace;
  plan.private_names = names_of(options.extra_env);
  plan.master_addr = options.master_addr.empty() ? outer.master_addr : options.master_addr;
  plan.master_port = options.master_port > 0 ? options.master_port : outer.master_port;
  if (outer.local_world_size > 1) {
    if (options.ranks_per_host > 0 && options.ranks_per_host != outer.local_world_size) {
      throw ConfigError(
          {.what = fmt::format("-n {} inside {}, which starts {} ranks on this host",
                               options.ranks_per_host, outer.launcher, outer.local_world_size),
           .where = "-n/--num_gpus",
           .fix = "leave -n out, or start one task per host"});
    }
    Share share{.node_rank = outer.node_rank,
                .node_count = outer.node_count,
                .world_size = outer.world_size,
                .first_rank = outer.rank - outer.local_rank,
                .local_world_size = outer.local_world_size,
                .begin = outer.local_rank,
                .end = outer.local_rank + 1,
                .devices = {}};
    plan.hosts = {{"this world", numbered_slots(outer.world_size)}};
    add_local_processes(plan, options, machine, share, machine.env);
    return plan;
  }
  const Place here = local_place(options, machine);
  const Host host = first_slots(here.pool, options.ranks_per_host).front();
  for (int i = 0; i < outer.node_count; ++i) {
    plan.hosts.push_back({fmt::format("node{}", i), host.slots});
  }
  const Share share = share_of_node(plan.hosts, outer.node_rank, here.slots_are_devices);
  // A host with one rank keeps its place in the outer MPI world; several ranks are new processes.
  add_local_processes(
      plan, options, machine, share,
      share.local_world_size == 1 ? machine.env : without_launcher_variables(machine.env));
  return plan;
}

}  // namespace

std::string to_string(Launcher launcher) {
  switch (launcher) {
    case Launcher::automatic:
      return "automatic";
    case Launcher::local:
      return "local";
    case Launcher::ssh:
      return "ssh";
    case Launcher::slurm:
      return "slurm";
    case Launcher::mpi:
      return "mpi";
  }
  throw InternalError({.what = "unknown launcher"});
}

Plan make_plan(const Options& options, const Machine& machine) {
  check_options(options);
  if (std::optional<Plan> inside = plan_inside_a_world(options, machine)) return *std::move(inside);
  const Place place = choose_place(options, machine);
  Plan plan;
  plan.hosts = place.pool;
  plan.launcher = choose_launcher(options, machine, plan.hosts);
  plan.grace = options.grace;
  plan.private_names = names_of(options.extra_env);
  plan.master_addr = options.master_addr;
  plan.master_port = options.master_port;
  const AgentCall call{resolve_program(options.program, machine), place.slots_are_devices};
  const bool here_only = plan.hosts.size() == 1 && is_this_machine(plan.hosts[0].name, machine);
  if (here_only && plan.master_addr.empty()) plan.master_addr = "127.0.0.1";
  switch (plan.launcher) {
    case Launcher::slurm:
      plan.processes = {srun_process(options, machine, plan.hosts, call,
                                     talks_mpi(options, machine, plan.world_size()))};
      break;
    case Launcher::mpi:
      plan.processes = {mpirun_process(options, machine, plan.hosts, call)};
      break;
    case Launcher::ssh:
      plan.processes = ssh_processes(options, machine, plan.hosts, call);
      break;
    default: {
      const int node_rank = std::max(0, options.node_rank);
      if (options.node_rank < 0 && !here_only) {
        throw ConfigError(
            {.what = fmt::format("the local launcher cannot start ranks on other hosts: {} are to "
                                 "be used, the first is \"{}\"",
                                 counted(std::ssize(plan.hosts), "host"), plan.hosts[0].name),
             .where = "--launcher local",
             .fix = "use --launcher ssh, or --no_ssh with --node_rank on every host"});
      }
      const Share share = share_of_node(plan.hosts, node_rank, place.slots_are_devices);
      if (options.node_rank >= 0 && plan.hosts.size() > 1) {
        // Started by hand, the hosts cannot agree on a free port: everyone's usual one.
        if (plan.master_addr.empty()) plan.master_addr = plan.hosts[0].name;
        if (plan.master_port == 0) plan.master_port = 29500;
      }
      add_local_processes(plan, options, machine, share, without_launcher_variables(machine.env));
    }
  }
  return plan;
}

std::string describe(const Plan& plan, const Environment& base) {
  std::string text =
      fmt::format("launcher {}, {} on {}, master {}:{}\n", to_string(plan.launcher),
                  counted(plan.world_size(), "rank"), counted(std::ssize(plan.hosts), "host"),
                  plan.master_addr.empty() ? "<rank 0's host>" : plan.master_addr,
                  plan.master_port == 0 ? "<free port>" : std::to_string(plan.master_port));
  for (const Process& process : plan.processes) {
    text += fmt::format("[{}]", process.name);
    for (const auto& [name, value] : process.env) {
      const auto found = base.find(name);
      if (found != base.end() && found->second == value) continue;
      text += fmt::format(" {}={}", name,
                          plan.private_names.contains(name) ? "<not shown>" : shell_quote(value));
    }
    text += fmt::format(" {}\n", shell_join(process.argv));
    if (process.sent.empty()) continue;
    text += fmt::format("  sent to it, not shown: {}\n", fmt::join(names_of(process.sent), " "));
  }
  return text;
}

}  // namespace capstan::launch
