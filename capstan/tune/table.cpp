#include "capstan/tune/table.h"

#include <algorithm>

#include <fmt/format.h>

#include "capstan/base/text.h"

namespace capstan::tune {
namespace {

using store::MemoryKind;
using store::Placement;

constexpr int kBarColumns = 60;

struct Kind {
  const char* name;
  char letter;
  std::int64_t bytes;
};

std::vector<Kind> kinds_of(const DeviceBytes& device, std::int64_t reserve) {
  return {{"parameters", 'P', device.parameters},
          {"gradients", 'G', device.gradients},
          {"optimizer", 'O', device.optimizer},
          {"activations", 'A', device.activations},
          {"buffers", 'B', device.buffers},
          {"workspace", 'W', device.workspace},
          {"reserve", 'r', reserve}};
}

std::string short_bytes(std::int64_t bytes) { return bytes == 0 ? "-" : format_bytes(bytes); }

std::string placement_of(const MemoryRow& row) {
  const store::Options& store = row.options.store;
  const auto word = [](Placement placement) {
    return placement == Placement::nvme ? "disk" : "host";
  };
  if (store.params.placement != Placement::device &&
      store.optimizer.placement == Placement::device) {
    return fmt::format("parameters: {}", word(store.params.placement));
  }
  if (store.params.placement != Placement::device) {
    return fmt::format("all: {}", word(store.params.placement));
  }
  if (store.optimizer.placement != Placement::device) {
    return fmt::format("optimizer: {}", word(store.optimizer.placement));
  }
  return "device";
}

std::string bar_of(const MemoryRow& row, std::int64_t scale, std::int64_t limit) {
  const MemoryEstimate& memory = row.memory;
  const auto column = [scale](std::int64_t bytes) {
    return static_cast<std::size_t>(
        static_cast<double>(bytes) / static_cast<double>(scale) * kBarColumns + 0.5);
  };
  std::string bar;
  std::int64_t sum = 0;
  for (const Kind& kind : kinds_of(memory[memory.peak_phase()], memory.reserve)) {
    sum += kind.bytes;
    bar.resize(std::max(bar.size(), column(sum)), kind.letter);
  }
  bar.resize(kBarColumns, ' ');
  if (limit > 0 && limit <= scale) {
    const std::size_t place = std::min<std::size_t>(column(limit), kBarColumns - 1);
    bar[place] = '|';
  }
  return bar;
}

json::Value use_to_json(const store::MemoryUse& use) {
  json::Value value{json::Object{}};
  return value.add("parameters", json::Value(use[MemoryKind::parameters]))
      .add("gradients", json::Value(use[MemoryKind::gradients]))
      .add("optimizer", json::Value(use[MemoryKind::optimizer]));
}

std::string lack(std::string_view what, std::int64_t need, std::int64_t have) {
  return fmt::format("needs {} of {}, there are {}", format_bytes(need), what, format_bytes(have));
}

}  // namespace

std::string too_little(const MemoryEstimate& memory, int ranks, const Machine& machine) {
  const auto sharing = static_cast<std::int64_t>(std::min(ranks, machine.devices_per_host));
  std::int64_t host = memory.host_need() * sharing;
  if (!machine.on_gpu) {
    host += memory.device_need() * sharing;
  } else if (machine.device_bytes > 0 && memory.device_need() > machine.device_bytes) {
    return lack("GPU memory", memory.device_need(), machine.device_bytes);
  }
  if (machine.host_bytes > 0 && host > machine.host_bytes) {
    return lack("host memory", host, machine.host_bytes);
  }
  const std::int64_t disk = memory.disk.total() * sharing;
  if (machine.disk_bytes > 0 && disk > machine.disk_bytes) {
    return lack("disk", disk, machine.disk_bytes);
  }
  return "";
}

std::vector<engine::Options> all_ways(const engine::Options& options) {
  struct Way {
    int stage;
    bool optimizer;
    bool params;
  };
  std::vector<engine::Options> all;
  for (const Way way :
       {Way{0, false, false}, Way{1, false, false}, Way{1, true, false}, Way{2, false, false},
        Way{2, true, false}, Way{3, false, false}, Way{3, true, false}, Way{3, true, true}}) {
    engine::Options each = options;
    each.shard.stage = way.stage;
    each.shard.reduce_schedule.reset();
    each.store.optimizer.placement = way.optimizer ? Placement::host : Placement::device;
    each.store.params.placement = way.params ? Placement::host : Placement::device;
    for (const bool recompute : {false, true}) {
      each.recompute.enabled = recompute;
      all.push_back(each);
    }
  }
  return all;
}

std::string trim_lines(const std::string& text) {
  std::string trimmed;
  for (const char c : text) {
    while (c == '\n' && trimmed.ends_with(' ')) trimmed.pop_back();
    trimmed += c;
  }
  return trimmed;
}

std::string memory_table(const std::vector<MemoryRow>& rows, const Machine& machine) {
  std::string text = fmt::format("{:<5}  {:<16}  {:<9}  {:>10}  {:>10}  {:>10}  {}\n", "stage",
                                 "placement", "recompute", "device", "host", "disk", "");
  std::int64_t scale = machine.device_bytes;
  for (const MemoryRow& row : rows) scale = std::max(scale, row.memory.device_need());
  for (const MemoryRow& row : rows) {
    text +=
        fmt::format("{:<5}  {:<16}  {:<9}  {:>10}  {:>10}  {:>10}  {}\n", row.options.shard.stage,
                    placement_of(row), row.options.recompute.enabled ? "yes" : "no",
                    format_bytes(row.memory.device_need()), short_bytes(row.memory.host_need()),
                    short_bytes(row.memory.disk.total()), row.lacks);
  }
  text += "\n";
  const std::int64_t limit = machine.on_gpu ? machine.device_bytes : 0;
  for (const MemoryRow& row : rows) {
    text += fmt::format("{:<5}  {:<16}  {:<9}  {}\n", row.options.shard.stage, placement_of(row),
                        row.options.recompute.enabled ? "yes" : "no", bar_of(row, scale, limit));
  }
  text += fmt::format(
      "\nP parameters  G gradients  O optimizer  A activations  B buffers  W workspace  r reserve"
      "{}; a full bar is {}\n",
      limit > 0 ? "  | end of the device" : "", format_bytes(scale));
  return trim_lines(text);
}

std::string phase_table(const MemoryRow& row) {
  std::string text = fmt::format("{:<14}", "");
  for (const Phase phase : kPhases) text += fmt::format("  {:>13}", to_string(phase));
  text += "\n";
  const MemoryEstimate& memory = row.memory;
  for (std::size_t kind = 0; kind < kinds_of({}, 0).size(); ++kind) {
    std::string line;
    for (const Phase phase : kPhases) {
      const Kind each = kinds_of(memory[phase], memory.reserve)[kind];
      if (line.empty()) line = fmt::format("{:<14}", each.name);
      line += fmt::format("  {:>13}", short_bytes(each.bytes));
    }
    text += line + "\n";
  }
  text += fmt::format("{:<14}", "device");
  for (const Phase phase : kPhases) {
    text += fmt::format("  {:>13}", format_bytes(memory[phase].total() + memory.reserve));
  }
  text += fmt::format("\n{:<14}  {}\n{:<14}  {}\n", "host", short_bytes(memory.host_need()), "disk",
                      short_bytes(memory.disk.total()));
  return text;
}

json::Value to_json(const MemoryRow& row) {
  const MemoryEstimate& memory = row.memory;
  json::Value phases{json::Object{}};
  for (const Phase phase : kPhases) {
    json::Value bytes{json::Object{}};
    for (const Kind& kind : kinds_of(memory[phase], memory.reserve)) {
      bytes.add(kind.name, json::Value(kind.bytes));
    }
    bytes.add("total", json::Value(memory[phase].total() + memory.reserve));
    phases.add(std::string(to_string(phase)), bytes);
  }
  const engine::Options& options = row.options;
  json::Value value{json::Object{}};
  value.add("stage", json::Value(options.shard.stage))
      .add("placement", json::Value(placement_of(row)))
      .add("recompute", json::Value(options.recompute.enabled))
      .add("micro_batch", json::Value(options.batch.micro_samples))
      .add("device_bytes", json::Value(memory.device_need()))
      .add("peak", json::Value(std::string(to_string(memory.peak_phase()))))
      .add("phases", phases)
      .add("host_bytes", json::Value(memory.host_need()))
      .add("host", use_to_json(memory.host))
      .add("disk_bytes", json::Value(memory.disk.total()))
      .add("fits", json::Value(row.lacks.empty()))
      .add("lacks", json::Value(row.lacks));
  return value;
}

}  // namespace capstan::tune
