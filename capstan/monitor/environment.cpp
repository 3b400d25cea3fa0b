#include "capstan/monitor/environment.h"

#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "capstan/base/text.h"

namespace capstan::monitor {
namespace {

// The value of the first line "name : value" of a file such as /proc/cpuinfo.
std::string value_in(const char* file, std::string_view name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || trim(std::string_view(line).substr(0, colon)) != name)
      continue;
    return std::string(trim(std::string_view(line).substr(colon + 1)));
  }
  return "";
}

}  // namespace

std::string host_name() {
  utsname names{};
  return uname(&names) == 0 ? names.nodename : "";
}

Facts environment() {
  utsname names{};
  uname(&names);
  const std::int64_t pages = sysconf(_SC_PHYS_PAGES);
  Facts facts = {{"host", names.nodename},
                 {"system", fmt::format("{} {}", names.sysname, names.release)},
                 {"CPU", value_in("/proc/cpuinfo", "model name")},
                 {"cores", std::to_string(std::thread::hardware_concurrency())},
                 {"memory", format_bytes(pages * sysconf(_SC_PAGESIZE))}};
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

}  // namespace capstan::monitor
