// Cores of this machine, and how they are shared out among its ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "capstan/launch/plan.h"
#include "capstan/launch/ranks.h"

namespace capstan::launch {

// One physical core that this process may use.
struct Core {
  std::vector<int> cpus;  // its hardware threads, as the kernel numbers them
  int numa_node = -1;     // -1: unknown
};

// In the order of the hardware, so that neighbours share caches and memory. Throws ConfigError
// where this build has no hwloc.
std::vector<Core> machine_cores();

// "0,2-4,6" picks cores by position. Throws ConfigError unless ascending, once each and there.
std::vector<Core> pick_cores(const std::vector<Core>& cores, std::string_view list);

struct Binding {
  bool bind = false;
  std::string core_list;  // empty: all cores
};

// Binds ranks to cores if asked. If not, several ranks of one host still share out the cores by
// OMP_NUM_THREADS (unless it is set): else each would start a thread per core, and they would
// fight.
void assign_cores(std::vector<Process>& processes, const Share& share, const Binding& binding,
                  const Machine& machine);

// Binds each process of `share` to an equal, disjoint run of cores, and sets OMP_NUM_THREADS to
// their number. Throws ConfigError when there are fewer cores than local ranks.
void bind_to_cores(std::vector<Process>& processes, const Share& share,
                   const std::vector<Core>& cores);

}  // namespace capstan::launch
