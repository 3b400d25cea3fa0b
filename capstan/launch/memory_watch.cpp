#include "capstan/launch/memory_watch.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "capstan/base/text.h"

namespace capstan::launch {
namespace {

namespace fs = std::filesystem;

// The value after `key` in a file of "key value" lines.
std::optional<std::int64_t> read_keyed(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string name; in >> name;) {
    std::int64_t value = 0;
    if (name == key && in >> value) return value;
    in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return {};
}

std::optional<std::int64_t> read_limit(const fs::path& file) {
  std::ifstream in(file);
  std::int64_t value = 0;
  // Version 2 writes "max", version 1 a number near 2^63.
  if (!(in >> value) || value >= std::int64_t{1} << 60) return {};
  return value;
}

// This process's memory cgroup: its path in the hierarchy, and the name of its limit file.
struct MemoryGroup {
  fs::path mount;
  std::string path;
  std::string limit_file;
};

std::optional<MemoryGroup> find_memory_group() {
  std::ifstream in("/proc/self/cgroup");
  std::optional<MemoryGroup> unified;
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    for (const std::string& controller : split(controllers, ',')) {
      if (controller == "memory") {
        return MemoryGroup{"/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"};
      }
    }
    if (controllers.empty()) unified = MemoryGroup{"/sys/fs/cgroup", path, "memory.max"};
  }
  return unified;
}

}  // namespace

MemoryLimit host_memory_limit() {
  MemoryLimit limit;
  if (const auto total = read_keyed("/proc/meminfo", "MemTotal:")) {
    limit = {*total * 1024, "the memory of this host"};
  }
  const std::optional<MemoryGroup> group = find_memory_group();
  if (!group) return limit;
  // Inside a container the path may be the host's; the mount itself is then the container's group.
  for (fs::path path = group->path;; path = path.parent_path()) {
    const fs::path file = fs::path(group->mount.string() + path.string()) / group->limit_file;
    const auto bytes = read_limit(file);
    if (bytes && (limit.bytes == 0 || *bytes < limit.bytes)) {
      limit = {*bytes, "the limit of cgroup " + path.string()};
    }
    if (path == path.parent_path()) return limit;
  }
}

std::int64_t MemoryWatch::read_kills() {
  // Counts kills of every cgroup as well as those of the whole machine; kernels since 4.13.
  return read_keyed("/proc/vmstat", "oom_kill").value_or(0);
}

}  // namespace capstan::launch
