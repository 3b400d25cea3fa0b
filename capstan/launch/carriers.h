// Command lines of the programs that carry a job to where its ranks run: ssh, srun, mpirun.
#pragma once

#include <string>
#include <vector>

#include "capstan/launch/plan.h"

namespace capstan::launch {

// What every agent of the job is told on its command line.
struct AgentCall {
  std::vector<std::string> command;  // resolve_program()'s words
  bool slots_are_devices = false;
};

// "capstan launch-agent …" without a place: the agent finds its rank in the environment.
// `node_rank` >= 0: the agent starts all ranks of that host.
std::vector<std::string> agent_command(const Options& options, const Machine& machine,
                                       const Pool& pool, const AgentCall& call, int node_rank);

// One process per host. A host that is this machine needs no ssh.
std::vector<Process> ssh_processes(const Options& options, const Machine& machine, const Pool& pool,
                                   const AgentCall& call);

// One srun, which starts an agent per rank. `use_mpi`: with --mpi=pmix.
Process srun_process(const Options& options, const Machine& machine, const Pool& pool,
                     const AgentCall& call, bool use_mpi);

// One mpirun, which starts an agent per rank.
Process mpirun_process(const Options& options, const Machine& machine, const Pool& pool,
                       const AgentCall& call);

// True for "localhost", a loopback address, and this machine's own name.
bool is_this_machine(const std::string& host, const Machine& machine);

}  // namespace capstan::launch
