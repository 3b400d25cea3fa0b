// What the user asks of the launcher. Plain values.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "capstan/launch/environment.h"
#include "capstan/launch/pool.h"

namespace capstan::launch {

// automatic: a SLURM job uses srun; several hosts use ssh; C++ programs without GPUs use mpirun,
// because their ranks talk MPI; all else is started directly.
enum class Launcher { automatic, local, ssh, slurm, mpi };

std::string to_string(Launcher launcher);

struct Program {
  std::vector<std::string> words;   // a script, module or program, then its arguments
  bool python = true;               // false: words[0] is a program of its own
  bool module = false;              // python -m words[0]
  bool local_rank_argument = true;  // python only: insert --local_rank=N after words[0]
  std::string interpreter;          // empty: $CAPSTAN_PYTHON, else python3 in PATH
};

struct Options {
  Program program;
  Launcher launcher = Launcher::automatic;
  int ranks_per_host = -1;  // -1: one per GPU, one where there is none
  int host_count = -1;      // -1: all of them
  Pool hosts;               // from the hostfile; empty: this machine, or the SLURM job's hosts
  std::string include;      // see pool.h; not together with exclude, ranks_per_host, host_count
  std::string exclude;
  std::string master_addr;  // empty: rank 0's host
  int master_port = 0;      // 0: a free one on rank 0's host, held until the job ends
  int node_rank = -1;       // >= 0: start only this host's ranks; the others are started by hand
  std::vector<std::string> launcher_args;  // further words for ssh, srun or mpirun
  int ssh_port = 0;                        // 0: ssh's own default
  bool bind_cores = false;                 // each rank gets cores of its own
  std::string core_list;                   // "0,2-4": the cores to share out; empty: all
  Environment extra_env;                   // set for every rank, on every host
  // From the signal that asks a rank to stop to the one that makes it. Long enough for a rank to
  // write a last checkpoint of a small model; longer only delays the report of a failure.
  std::chrono::milliseconds grace{15000};
};

}  // namespace capstan::launch
