#include "capstan/launch/pool.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::launch {
namespace {

constexpr int kMaxSlotsPerHost = 4096;  // a mistyped slots= must not fill the memory

// "host slots=4 anything": the trailing text is allowed, as other launchers allow it.
std::optional<Host> parse_host_line(std::string_view line) {
  const std::size_t name_end = line.find_first_of(" \t");
  if (name_end == std::string_view::npos) return {};
  const std::string_view rest = trim(line.substr(name_end));
  constexpr std::string_view kKey = "slots=";
  if (!rest.starts_with(kKey)) return {};
  const std::string_view digits = rest.substr(kKey.size());
  int count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (error != std::errc{} || count < 1 || count > kMaxSlotsPerHost) return {};
  if (end != digits.data() + digits.size() && *end != ' ' && *end != '\t' && *end != '#') return {};
  return Host{std::string(line.substr(0, name_end)), numbered_slots(count)};
}

const Host* find_host(const Pool& pool, std::string_view name) {
  const auto found = std::ranges::find(pool, name, &Host::name);
  return found == pool.end() ? nullptr : &*found;
}

std::vector<std::string> host_names(const Pool& pool) {
  std::vector<std::string> names;
  names.reserve(pool.size());
  for (const Host& host : pool) names.push_back(host.name);
  return names;
}

// host -> the slots that the filter names, in pool order and once each.
std::map<std::string, std::vector<std::string>> parse_filter(const Pool& pool,
                                                             std::string_view filter,
                                                             const std::string& flag) {
  std::map<std::string, std::vector<std::string>> chosen;
  const auto fail = [&](std::string what, std::string fix) {
    throw ConfigError({.what = std::move(what),
                       .where = fmt::format("{} \"{}\"", flag, filter),
                       .fix = std::move(fix)});
  };
  for (const std::string& node : split(filter, '@')) {
    const std::size_t colon = node.find(':');
    const std::string name(trim(std::string_view(node).substr(0, colon)));
    const Host* host = find_host(pool, name);
    if (host == nullptr) {
      const std::vector<std::string> names = host_names(pool);
      const std::string near = nearest_name(name, names);
      fail(fmt::format("there is no host \"{}\"", name),
           near.empty() ? fmt::format("use one of: {}", fmt::join(names, ", "))
                        : fmt::format("did you mean \"{}\"?", near));
    }
    std::vector<std::string>& slots = chosen[name];
    if (colon == std::string::npos) {
      slots = host->slots;
      continue;
    }
    for (const std::string& piece : split(std::string_view(node).substr(colon + 1), ',')) {
      const std::string slot(trim(piece));
      if (std::ranges::find(host->slots, slot) == host->slots.end()) {
        fail(fmt::format("host \"{}\" has no slot \"{}\"", name, slot),
             fmt::format("its slots are {}", fmt::join(host->slots, ",")));
      }
      slots.push_back(slot);
    }
  }
  return chosen;
}

std::string flag_of(bool keep) { return keep ? "--include" : "--exclude"; }

Pool filtered_or_error(const Pool& pool, std::string_view filter, bool keep) {
  Pool left = filter_hosts(pool, filter, keep);
  if (!left.empty()) return left;
  throw ConfigError({.what = "no slot is left to run on",
                     .where = fmt::format("{} \"{}\"", flag_of(keep), filter),
                     .fix = "leave at least one slot of one host"});
}

}  // namespace

bool is_host_name(std::string_view name) {
  return !name.empty() && name.front() != '-' && std::ranges::none_of(name, [](unsigned char c) {
    return c <= ' ' || c == 0x7f || c == '@' || c == ',' || c == '/';
  });
}

std::vector<std::string> numbered_slots(int count) {
  std::vector<std::string> slots(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) slots[static_cast<std::size_t>(i)] = std::to_string(i);
  return slots;
}

Pool parse_hostfile(std::string_view text, const std::string& file) {
  Pool pool;
  std::string problems;
  int line_number = 0;
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // some editors begin UTF-8 with it
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (const std::string& raw : split(text, '\n')) {
    ++line_number;
    const std::string_view line = trim(raw);
    if (line.empty() || line.front() == '#') continue;
    std::optional<Host> host = parse_host_line(line);
    if (!host) {
      problems += fmt::format("\n    line {}: \"{}\" is not \"host slots=N\"", line_number, line);
    } else if (!is_host_name(host->name)) {
      problems +=
          fmt::format("\n    line {}: \"{}\" is no name of a host", line_number, host->name);
    } else if (find_host(pool, host->name) != nullptr) {
      problems +=
          fmt::format("\n    line {}: host \"{}\" is listed twice", line_number, host->name);
    } else {
      pool.push_back(*std::move(host));
    }
  }
  if (problems.empty() && pool.empty()) problems = " it names no host";
  if (!problems.empty()) {
    throw ConfigError(
        {.what = "cannot use the hostfile:" + problems,
         .where = file,
         .fix = "write one line per host, such as: node1 slots=8; a user's name or options belong "
                "into ssh's own configuration"});
  }
  return pool;
}

Pool filter_hosts(const Pool& pool, std::string_view filter, bool keep) {
  const auto chosen = parse_filter(pool, filter, flag_of(keep));
  Pool left;
  for (const Host& host : pool) {
    const auto found = chosen.find(host.name);
    Host kept{host.name, {}};
    for (const std::string& slot : host.slots) {
      const bool named =
          found != chosen.end() && std::ranges::find(found->second, slot) != found->second.end();
      if (named == keep) kept.slots.push_back(slot);
    }
    if (!kept.slots.empty()) left.push_back(std::move(kept));
  }
  return left;
}

Pool include_hosts(const Pool& pool, std::string_view filter) {
  return filtered_or_error(pool, filter, /*keep=*/true);
}

Pool exclude_hosts(const Pool& pool, std::string_view filter) {
  return filtered_or_error(pool, filter, /*keep=*/false);
}

Pool first_hosts(const Pool& pool, int hosts) {
  if (hosts < 0) return pool;
  if (hosts == 0 || hosts > static_cast<int>(pool.size())) {
    throw ConfigError(
        {.what = fmt::format("{} hosts were requested, but only {} are known", hosts, pool.size()),
         .where = "--num_nodes",
         .fix = "name more hosts in the --hostfile, or ask for fewer"});
  }
  return {pool.begin(), pool.begin() + hosts};
}

Pool first_slots(const Pool& pool, int slots) {
  if (slots < 0) return pool;
  Pool cut = pool;
  for (Host& host : cut) {
    if (slots == 0 || slots > static_cast<int>(host.slots.size())) {
      throw ConfigError(
          {.what = fmt::format("{} ranks were requested on host \"{}\", which has {}", slots,
                               host.name, counted(std::ssize(host.slots), "slot")),
           .where = "-n/--num_gpus",
           .fix = "ask for fewer, or raise slots= in the hostfile"});
    }
    host.slots.resize(static_cast<std::size_t>(slots));
  }
  return cut;
}

int count_slots(const Pool& pool) {
  int total = 0;
  for (const Host& host : pool) total += static_cast<int>(host.slots.size());
  return total;
}

}  // namespace capstan::launch
