// Which processes to start for a job, with their full command lines and environments. Decided
// before anything runs, so that --dry-run shows exactly what would happen.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "capstan/launch/machine.h"
#include "capstan/launch/options.h"

namespace capstan::launch {

// How a process speaks to the one that started it.
enum class Channel {
  output,          // it is a rank: what it prints is the rank's output
  agent_on_pipe,   // it carries one agent: stdin and stdout are the agent's wire
  agents_on_link,  // it starts agents elsewhere, which connect back over the network
};

struct Process {
  std::string name;  // "rank 3", "ssh node1", "mpirun"
  int rank = -1;     // -1: not a rank itself
  Channel channel = Channel::output;
  std::vector<std::string> argv;  // argv[0] is an absolute path
  Environment env;                // complete
  Environment sent;               // an agent on a pipe gets these over it: words can be seen by all
  std::vector<int> cpus;          // bound to these; empty: not bound
  int numa_node = -1;             // memory is preferred from here; -1: anywhere
};

struct Plan {
  Launcher launcher = Launcher::local;
  Pool hosts;  // slot i, counted over all hosts, is rank i
  std::vector<Process> processes;
  std::string master_addr;  // empty: rank 0's agent says where it is
  int master_port = 0;      // 0: chosen on rank 0's host when the job starts
  std::chrono::milliseconds grace{15000};
  std::set<std::string> private_names;  // variables of the user's file: their values are not shown

  int world_size() const { return count_slots(hosts); }
};

// Throws ConfigError on options that contradict each other or this machine.
Plan make_plan(const Options& options, const Machine& machine);

// The plan as text: one command per process, with the variables that differ from `base` and those
// that are sent. Values that the launcher did not make are left out: they may be secrets.
std::string describe(const Plan& plan, const Environment& base);

}  // namespace capstan::launch
