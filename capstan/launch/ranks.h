// The ranks of a job as processes of one host: who is where, and what each is told.
#pragma once

#include <string>
#include <vector>

#include "capstan/base/rank_env.h"
#include "capstan/launch/plan.h"

namespace capstan::launch {

// The part of a job that one launcher process starts: local ranks [begin, end) of one host.
struct Share {
  int node_rank = 0;
  int node_count = 1;
  int world_size = 1;
  int first_rank = 0;        // global rank of this host's local rank 0
  int local_world_size = 1;  // all ranks of this host
  int begin = 0;
  int end = 1;
  std::vector<std::string> devices;  // visible to every rank of this host; empty: left as it is
};

// All ranks of one host, or the one rank `rank`. `slots_are_devices`: the pool names GPUs.
Share share_of_node(const Pool& pool, int node_rank, bool slots_are_devices);
Share share_of_rank(const Pool& pool, int rank, bool slots_are_devices);

// "h0:0,1@h1:0" and back, for the agents. Throws ConfigError on anything else.
std::string format_pool(const Pool& pool);
Pool parse_pool(std::string_view text);

struct Master {
  std::string addr;
  int port = 0;
};

// The interpreter (if any), the program and its arguments, without --local_rank. Throws
// ConfigError when the program, script or interpreter is not there.
std::vector<std::string> resolve_program(const Program& program, const Machine& machine);

// One process per rank of `share`: `command` is resolve_program()'s. The environment is `base` plus
// the variables of docs/environment.md.
std::vector<Process> rank_processes(const Share& share, const Program& program,
                                    const std::vector<std::string>& command,
                                    const Environment& base);

// Fills in where rank 0 listens.
void set_master(std::vector<Process>& processes, const Master& master);

}  // namespace capstan::launch
