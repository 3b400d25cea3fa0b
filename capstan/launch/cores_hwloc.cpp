#include <memory>

#include <hwloc.h>

#include "capstan/base/error.h"
#include "capstan/launch/cores.h"

namespace capstan::launch {

std::vector<Core> machine_cores() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    throw IoError({.what = "hwloc cannot describe this machine",
                   .where = "--bind_cores_to_rank",
                   .fix = "remove the flag"});
  }
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> topology(
      raw, &hwloc_topology_destroy);
  if (hwloc_topology_load(raw) != 0) {
    throw IoError({.what = "hwloc cannot read this machine's topology",
                   .where = "--bind_cores_to_rank",
                   .fix = "remove the flag"});
  }
  std::vector<Core> cores;
  // What this process may use: less than the machine under taskset, SLURM or a container.
  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> allowed(hwloc_bitmap_alloc(),
                                                                              &hwloc_bitmap_free);
  if (hwloc_get_cpubind(raw, allowed.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(allowed.get(), hwloc_topology_get_allowed_cpuset(raw));
  }
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_CORE, object)) != nullptr) {
    Core core;
    unsigned cpu = 0;
    hwloc_bitmap_foreach_begin(cpu, object->cpuset) {
      if (hwloc_bitmap_isset(allowed.get(), cpu) != 0) core.cpus.push_back(static_cast<int>(cpu));
    }
    hwloc_bitmap_foreach_end();
    if (hwloc_bitmap_weight(object->nodeset) == 1) {
      core.numa_node = hwloc_bitmap_first(object->nodeset);
    }
    if (!core.cpus.empty()) cores.push_back(std::move(core));
  }
  return cores;
}

}  // namespace capstan::launch
