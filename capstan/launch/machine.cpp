#include "capstan/launch/machine.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <system_error>

#include <sched.h>
#include <unistd.h>

#include "capstan/base/text.h"

namespace capstan::launch {
namespace {

namespace fs = std::filesystem;

// The driver makes one node per GPU: /dev/nvidia0, /dev/nvidia1, … (and nvidiactl, nvidia-uvm).
std::vector<std::string> present_devices() {
  std::size_t count = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kPrefix = "nvidia";
    if (!name.starts_with(kPrefix) || name.size() == kPrefix.size()) continue;
    const std::string digits = name.substr(kPrefix.size());
    if (std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c) != 0; })) {
      ++count;
    }
  }
  std::vector<std::string> devices(count);
  // CUDA numbers the devices it sees from zero, whatever their nodes are called.
  for (std::size_t i = 0; i < count; ++i) devices[i] = std::to_string(i);
  return devices;
}

int count_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

std::string read_host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

bool is_executable_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::vector<std::string> visible_devices(const std::vector<std::string>& present,
                                         const Environment& env) {
  const auto found = env.find("CUDA_VISIBLE_DEVICES");
  if (found == env.end() || present.empty()) return present;
  std::vector<std::string> visible;
  for (const std::string& piece : split(found->second, ',')) {
    const std::string id(trim(piece));
    // CUDA stops at the first entry that names no device: "0,-1,1" shows one.
    const bool is_number = !id.empty() && std::ranges::all_of(id, [](unsigned char c) {
      return std::isdigit(c) != 0;
    });
    const bool is_uuid = id.starts_with("GPU-") || id.starts_with("MIG-");
    if (is_number && std::ranges::find(present, id) == present.end()) break;
    if (!is_number && !is_uuid) break;
    visible.push_back(id);
  }
  return visible;
}

std::string find_program(const std::string& name, const Environment& env) {
  std::error_code error;
  if (name.empty()) return {};
  if (name.find('/') != std::string::npos) {
    return is_executable_file(name) ? fs::absolute(name, error).string() : std::string();
  }
  const auto path = env.find("PATH");
  if (path == env.end()) return {};
  for (const std::string& folder : split(path->second, ':')) {
    const fs::path candidate = fs::path(folder.empty() ? "." : folder) / name;
    if (is_executable_file(candidate)) return fs::absolute(candidate, error).string();
  }
  return {};
}

Machine this_machine(const std::string& self) {
  Machine machine;
  std::error_code error;
  machine.host_name = read_host_name();
  machine.env = current_environment();
  machine.devices = visible_devices(present_devices(), machine.env);
  machine.cores = count_cores();
  machine.is_root = geteuid() == 0;
  machine.folder = fs::current_path(error).string();
  machine.self = self.empty() ? fs::read_symlink("/proc/self/exe", error).string() : self;
  return machine;
}

}  // namespace capstan::launch
