// The hosts and slots that a job may use: read from a hostfile, narrowed by --include, --exclude,
// --num_nodes and --num_gpus. Pure text and values: nothing is started or looked up here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace capstan::launch {

// One rank runs on each slot. A slot is a device identifier as CUDA_VISIBLE_DEVICES spells it
// ("0", "GPU-8f6c…", "MIG-…"), or a plain number where there are no devices.
struct Host {
  std::string name;
  std::vector<std::string> slots;

  bool operator==(const Host&) const = default;
};

// In hostfile order, which fixes the order of ranks. Every host has at least one slot.
using Pool = std::vector<Host>;

// Whether ssh, srun and mpirun would take it for a host: "-oProxyCommand=…" is an option to ssh.
// The signs that lists of hosts are written with ("@", ",", "/" and blanks) are no part of a name.
bool is_host_name(std::string_view name);

// Slots "0" … "count-1".
std::vector<std::string> numbered_slots(int count);

// Lines "host slots=N"; blank lines and "#" comments are skipped. `file` is named in errors.
// Throws ConfigError listing every bad line: no slots, no name, a host twice, no host at all.
Pool parse_hostfile(std::string_view text, const std::string& file);

// A filter is NODE[@NODE…] with NODE = host[:slot[,slot…]]; no slot list means the whole host.
// Hostfile order is kept, a host without slots left is dropped. Throws ConfigError on a host or
// slot that the pool does not have, and when nothing is left; filter_hosts() then gives an empty
// pool.
Pool include_hosts(const Pool& pool, std::string_view filter);
Pool exclude_hosts(const Pool& pool, std::string_view filter);
Pool filter_hosts(const Pool& pool, std::string_view filter, bool keep);  // keep: --include

// The first `hosts` hosts; the first `slots` slots of each. -1 keeps all. Throws ConfigError when
// the pool has fewer.
Pool first_hosts(const Pool& pool, int hosts);
Pool first_slots(const Pool& pool, int slots);

int count_slots(const Pool& pool);

}  // namespace capstan::launch
