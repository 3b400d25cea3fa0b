#include "capstan/launch/ranks.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::launch {
namespace {

namespace fs = std::filesystem;

std::string find_interpreter(const Program& program, const Machine& machine) {
  std::vector<std::string> names = {"python3", "python"};
  if (const auto given = machine.env.find("CAPSTAN_PYTHON");
      given != machine.env.end() && !given->second.empty()) {
    names = {given->second};
  }
  if (!program.interpreter.empty()) names = {program.interpreter};
  for (const std::string& name : names) {
    std::string path = find_program(name, machine.env);
    if (!path.empty()) return path;
  }
  throw ConfigError({.what = fmt::format("there is no Python interpreter \"{}\"", names.front()),
                     .where = "PATH",
                     .fix = "activate the environment, set CAPSTAN_PYTHON=/path/to/python3, or use "
                            "--no_python for a program"});
}

bool is_elf(const fs::path& path) {
  std::array<char, 4> magic{};
  std::ifstream(path, std::ios::binary).read(magic.data(), magic.size());
  return magic == std::array<char, 4>{'\x7f', 'E', 'L', 'F'};
}

void check_script(const std::string& script) {
  std::error_code error;
  if (!fs::exists(script, error)) {
    throw ConfigError(
        {.what = fmt::format("there is no script \"{}\"", script),
         .where = "capstan launch",
         .fix = "check the path; --module runs a module by name, --no_python a program"});
  }
  if (is_elf(script)) {
    throw ConfigError({.what = fmt::format("\"{}\" is a program, not a Python script", script),
                       .where = "capstan launch",
                       .fix = "add --no_python before it"});
  }
}

Environment rank_environment(const Share& share, int local_rank, const Environment& base) {
  Environment env = base;
  env["RANK"] = std::to_string(share.first_rank + local_rank);
  env["WORLD_SIZE"] = std::to_string(share.world_size);
  env["LOCAL_RANK"] = std::to_string(local_rank);
  env["LOCAL_WORLD_SIZE"] = std::to_string(share.local_world_size);
  env["GROUP_RANK"] = std::to_string(share.node_rank);
  env["GROUP_WORLD_SIZE"] = std::to_string(share.node_count);
  // The same three facts under the names that DeepSpeed's own launcher uses.
  env["LOCAL_SIZE"] = env["LOCAL_WORLD_SIZE"];
  env["CROSS_RANK"] = env["GROUP_RANK"];
  env["CROSS_SIZE"] = env["GROUP_WORLD_SIZE"];
  if (!share.devices.empty()) {
    env["CUDA_VISIBLE_DEVICES"] = fmt::format("{}", fmt::join(share.devices, ","));
  }
  return env;
}

}  // namespace

Share share_of_node(const Pool& pool, int node_rank, bool slots_are_devices) {
  if (node_rank < 0 || node_rank >= static_cast<int>(pool.size())) {
    throw ConfigError({.what = fmt::format("there is no node rank {}: the job has {}", node_rank,
                                           counted(std::ssize(pool), "host")),
                       .where = "--node_rank",
                       .fix = "number the hosts from 0, in the order of the hostfile"});
  }
  Share share;
  share.node_rank = node_rank;
  share.node_count = static_cast<int>(pool.size());
  share.world_size = count_slots(pool);
  for (int i = 0; i < node_rank; ++i) {
    share.first_rank += static_cast<int>(pool[static_cast<std::size_t>(i)].slots.size());
  }
  const Host& host = pool[static_cast<std::size_t>(node_rank)];
  share.local_world_size = static_cast<int>(host.slots.size());
  share.end = share.local_world_size;
  if (slots_are_devices) share.devices = host.slots;
  return share;
}

Share share_of_rank(const Pool& pool, int rank, bool slots_are_devices) {
  int node = 0;
  int local = rank;
  for (const Host& host : pool) {
    const int slots = static_cast<int>(host.slots.size());
    if (local < slots) break;
    local -= slots;
    ++node;
  }
  Share share = share_of_node(pool, node, slots_are_devices);
  share.begin = local;
  share.end = local + 1;
  return share;
}

std::string format_pool(const Pool& pool) {
  std::vector<std::string> nodes;
  for (const Host& host : pool) {
    nodes.push_back(fmt::format("{}:{}", host.name, fmt::join(host.slots, ",")));
  }
  return fmt::format("{}", fmt::join(nodes, "@"));
}

Pool parse_pool(std::string_view text) {
  Pool pool;
  for (const std::string& node : split(text, '@')) {
    const std::size_t colon = node.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == node.size()) {
      throw ConfigError({.what = fmt::format("cannot read \"{}\"", text),
                         .where = "--pool",
                         .fix = "write host:slot,slot@host:slot"});
    }
    pool.push_back({node.substr(0, colon), split(std::string_view(node).substr(colon + 1), ',')});
  }
  return pool;
}

std::vector<std::string> resolve_program(const Program& program, const Machine& machine) {
  if (program.words.empty()) {
    throw ConfigError({.what = "there is no program to start",
                       .where = "capstan launch",
                       .fix = "name a script after the flags: capstan launch -n 2 train.py"});
  }
  if (!program.python && program.module) {
    throw ConfigError(
        {.what = "--module runs a Python module, but --no_python runs a program that is not Python",
         .where = "capstan launch",
         .fix = "remove one of the two flags"});
  }
  std::vector<std::string> command;
  if (program.python) {
    command = {find_interpreter(program, machine), "-u"};
    if (program.module) {
      command.emplace_back("-m");
    } else {
      check_script(program.words.front());
    }
    command.push_back(program.words.front());
  } else {
    command = {find_program(program.words.front(), machine.env)};
    if (command.front().empty()) {
      throw ConfigError({.what = fmt::format("there is no program \"{}\"", program.words.front()),
                         .where = "capstan launch --no_python",
                         .fix = "check the path, the execute permission, and PATH"});
    }
  }
  command.insert(command.end(), program.words.begin() + 1, program.words.end());
  return command;
}

std::vector<Process> rank_processes(const Share& share, const Program& program,
                                    const std::vector<std::string>& command,
                                    const Environment& base) {
  std::vector<Process> processes;
  for (int local = share.begin; local < share.end; ++local) {
    Process process;
    process.rank = share.first_rank + local;
    process.name = fmt::format("rank {}", process.rank);
    process.argv = command;
    if (program.python && program.local_rank_argument) {
      // After the script, before its own arguments: where DeepSpeed's launcher puts it.
      const std::size_t position = program.module ? 4 : 3;
      process.argv.insert(process.argv.begin() + static_cast<std::ptrdiff_t>(position),
                          fmt::format("--local_rank={}", local));
    }
    process.env = rank_environment(share, local, base);
    processes.push_back(std::move(process));
  }
  return processes;
}

void set_master(std::vector<Process>& processes, const Master& master) {
  for (Process& process : processes) {
    if (process.rank < 0) continue;
    process.env["MASTER_ADDR"] = master.addr;
    process.env["MASTER_PORT"] = std::to_string(master.port);
  }
}

}  // namespace capstan::launch
