#include "capstan/device/host_facts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <system_error>

namespace capstan::device {
namespace {

std::optional<std::int64_t> kib_of(const char* key) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::int64_t value = 0;
  std::string unit;
  while (file >> name >> value) {
    std::getline(file, unit);
    if (name == key) return value;
  }
  return std::nullopt;
}

// "max" and files that are not there are no limit.
std::optional<std::int64_t> number_in(const char* path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<std::int64_t> available_host_bytes() {
  std::optional<std::int64_t> available = kib_of("MemAvailable:");
  if (available.has_value()) *available *= 1024;
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit.has_value() || !used.has_value()) return available;
  const std::int64_t left = std::max<std::int64_t>(0, *limit - *used);
  return available.has_value() ? std::min(*available, left) : left;
}

std::int64_t host_id() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  if (text.empty()) return 0;
  std::error_code unknown;
  text += std::filesystem::read_symlink("/proc/self/ns/cgroup", unknown).string();
  return static_cast<std::int64_t>(std::hash<std::string>()(text));
}

}  // namespace capstan::device
