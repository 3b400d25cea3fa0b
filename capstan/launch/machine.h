// What planning needs to know about this machine. Looked up once; a test writes its own.
#pragma once

#include <string>
#include <vector>

#include "capstan/launch/environment.h"

namespace capstan::launch {

struct Machine {
  std::string host_name;
  std::vector<std::string> devices;  // visible GPUs, as CUDA_VISIBLE_DEVICES spells them
  int cores = 1;                     // that this process may run on
  bool is_root = false;
  std::string folder;  // the current one; ranks start in it, on every host
  std::string self;    // absolute path of the `capstan` program, which is also the agent
  Environment env;
};

// The real one. `self` is the program that runs as agent; empty: this very program.
Machine this_machine(const std::string& self = "");

// The GPUs that CUDA_VISIBLE_DEVICES leaves of `present` (/dev/nvidia0 … are "0", …).
std::vector<std::string> visible_devices(const std::vector<std::string>& present,
                                         const Environment& env);

// Absolute path of an executable: `name` itself when it has a slash, else the first in PATH;
// empty when there is none.
std::string find_program(const std::string& name, const Environment& env);

}  // namespace capstan::launch
