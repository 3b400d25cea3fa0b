// The launcher's hand on another host, or inside mpirun and srun: starts the ranks it is told to,
// sends home what they print and how they end, and stops them when told or when home is gone.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "capstan/launch/cores.h"
#include "capstan/launch/plan.h"

namespace capstan::launch {

struct AgentOptions {
  Pool pool;  // of the whole job
  bool slots_are_devices = false;
  int node_rank = -1;  // all ranks of that host; -1: the one rank that the environment names
  Program program;     // without words: `command` is final
  std::vector<std::string> command;
  Binding binding;
  std::chrono::milliseconds grace{15000};
};

// Speaks the protocol of wire.h on stdin and stdout, or with CAPSTAN_LINK over the network.
// Returns the agent's own exit code: how ranks end is told on the wire.
int run_agent(const AgentOptions& options);

}  // namespace capstan::launch
