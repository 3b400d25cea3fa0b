#include "capstan/launch/cores.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::launch {
namespace {

[[noreturn]] void fail_core_list(std::string_view list, std::string what) {
  throw ConfigError({.what = std::move(what),
                     .where = fmt::format("--bind_core_list \"{}\"", list),
                     .fix = "write ascending cores and ranges, such as 0,2-4,6"});
}

int parse_core(std::string_view digits, std::string_view list) {
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value < 0) {
    fail_core_list(list, fmt::format("\"{}\" is not a core", digits));
  }
  return value;
}

}  // namespace

std::vector<Core> pick_cores(const std::vector<Core>& cores, std::string_view list) {
  if (list.empty()) return cores;
  std::vector<Core> picked;
  int next = 0;
  for (const std::string& piece : split(list, ',')) {
    const std::string_view range = trim(piece);
    const std::size_t dash = range.find('-');
    const int first = parse_core(range.substr(0, dash), list);
    const int last =
        dash == std::string_view::npos ? first : parse_core(range.substr(dash + 1), list);
    if (first < next || last < first)
      fail_core_list(list, fmt::format("\"{}\" is not in ascending order", range));
    if (last >= static_cast<int>(cores.size())) {
      fail_core_list(list, fmt::format("core {} does not exist: there are {}", last,
                                       counted(std::ssize(cores), "core")));
    }
    for (int core = first; core <= last; ++core) {
      picked.push_back(cores[static_cast<std::size_t>(core)]);
    }
    next = last + 1;
  }
  return picked;
}

void bind_to_cores(std::vector<Process>& processes, const Share& share,
                   const std::vector<Core>& cores) {
  const int each = static_cast<int>(cores.size()) / share.local_world_size;
  if (each < 1) {
    throw ConfigError(
        {.what = fmt::format("{} ranks cannot have a core each: the machine has {}",
                             share.local_world_size, counted(std::ssize(cores), "core")),
         .where = "--bind_cores_to_rank",
         .fix = "start fewer ranks, or remove the flag"});
  }
  for (std::size_t i = 0; i < processes.size(); ++i) {
    Process& process = processes[i];
    const std::size_t first =
        (static_cast<std::size_t>(share.begin) + i) * static_cast<std::size_t>(each);
    process.numa_node = cores[first].numa_node;
    for (std::size_t core = first; core < first + static_cast<std::size_t>(each); ++core) {
      process.cpus.insert(process.cpus.end(), cores[core].cpus.begin(), cores[core].cpus.end());
      if (cores[core].numa_node != process.numa_node) process.numa_node = -1;
    }
    process.env["OMP_NUM_THREADS"] = std::to_string(each);
  }
}

void assign_cores(std::vector<Process>& processes, const Share& share, const Binding& binding,
                  const Machine& machine) {
  if (binding.bind) {
    bind_to_cores(processes, share, pick_cores(machine_cores(), binding.core_list));
  }
  if (share.local_world_size < 2) return;
  const int each = std::max(1, machine.cores / share.local_world_size);
  for (Process& process : processes) process.env.emplace("OMP_NUM_THREADS", std::to_string(each));
}

}  // namespace capstan::launch
