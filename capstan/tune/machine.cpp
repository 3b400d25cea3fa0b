#include "capstan/tune/machine.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::tune {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

// From what a data sheet promises to what programs reach. Measured on an H200: 790 of 989 TFLOP/s
// in large products, 3.45 of 4.8 TB/s in a fused AdamW, 55 of 64 GB/s over PCIe.
constexpr double kProductShare = 0.8;
constexpr double kMemoryShare = 0.72;
constexpr double kLinkShare = 0.85;

// As vendors publish them; links and networks of the usual servers, each way per GPU.
struct Sheet {
  const char* name;
  double gib;        // as the driver shows it
  double tflops_16;  // dense, with fp32 sums
  double tflops_32;  // without TF32, as PyTorch's default
  double memory_tb;
  double link_gb;
  double network_gb;
  double pcie_gb;
  int per_host;
  std::int64_t host_gib;
};

constexpr std::array<Sheet, 10> kSheets = {
    {{"b200", 178, 2250, 75, 8.0, 900, 50, 64, 8, 2048},
     {"h200", 139.7, 989, 67, 4.8, 450, 50, 64, 8, 2048},
     {"h100", 79.2, 989, 67, 3.35, 450, 50, 64, 8, 2048},
     {"a100", 79.2, 312, 19.5, 2.04, 300, 25, 32, 8, 1024},
     {"a100-40gb", 39.4, 312, 19.5, 1.56, 300, 25, 32, 8, 1024},
     {"v100", 31.7, 125, 15.7, 0.9, 150, 12.5, 16, 8, 768},
     {"l40s", 44.5, 362, 91.6, 0.864, 32, 12.5, 32, 8, 768},
     {"rtx4090", 23.6, 165, 82.6, 1.01, 32, 3, 32, 2, 128},
     {"rtx3090", 23.6, 71, 35.6, 0.936, 32, 3, 32, 2, 128},
     {"t4", 14.6, 65, 8.1, 0.32, 16, 3, 16, 1, 64}}};

Machine from_sheet(const Sheet& sheet) {
  Machine machine;
  machine.name = sheet.name;
  machine.devices_per_host = sheet.per_host;
  machine.device_bytes = static_cast<std::int64_t>(sheet.gib * static_cast<double>(kGiB));
  machine.host_bytes = sheet.host_gib * kGiB;
  machine.flops_16 = sheet.tflops_16 * kTera * kProductShare;
  machine.flops_32 = sheet.tflops_32 * kTera * kProductShare;
  machine.memory_rate = sheet.memory_tb * kTera * kMemoryShare;
  machine.link_rate = sheet.link_gb * kGiga * kMemoryShare;
  machine.network_rate = sheet.network_gb * kGiga * kLinkShare;
  machine.host_link_rate = sheet.pcie_gb * kGiga * kLinkShare;
  // AdamW moves 28 bytes of each element; a host of eight GPUs has about 400 GB/s for it.
  machine.host_update_rate = 400e9 / 28 * sheet.per_host / 8;
  machine.disk_read_rate = 5e9;
  machine.disk_write_rate = 3e9;
  machine.kernel_delay = Seconds(4e-6);
  return machine;
}

// A rough one: a rank on two cores with AVX2.
Machine processor() {
  Machine machine;
  machine.name = "cpu";
  machine.on_gpu = false;
  machine.devices_per_host = 1;
  machine.flops_16 = machine.flops_32 = 100e9;
  machine.memory_rate = 10e9;
  machine.link_rate = 4e9;
  machine.network_rate = 1e9;
  machine.host_update_rate = 400e6;
  machine.disk_read_rate = 1e9;
  machine.disk_write_rate = 0.5e9;
  machine.collective_delay = Seconds(100e-6);
  machine.kernel_delay = Seconds(10e-6);
  return machine;
}

// A figure of a file: its key and where it goes.
struct Figure {
  const char* key;
  double Machine::* rate;
};
constexpr std::array<Figure, 9> kFigures = {{{"flops_16", &Machine::flops_16},
                                             {"flops_32", &Machine::flops_32},
                                             {"memory_rate", &Machine::memory_rate},
                                             {"link_rate", &Machine::link_rate},
                                             {"network_rate", &Machine::network_rate},
                                             {"host_link_rate", &Machine::host_link_rate},
                                             {"host_update_rate", &Machine::host_update_rate},
                                             {"disk_read_rate", &Machine::disk_read_rate},
                                             {"disk_write_rate", &Machine::disk_write_rate}}};
struct Size {
  const char* key;
  std::int64_t Machine::* bytes;
};
constexpr std::array<Size, 3> kSizes = {{{"device_bytes", &Machine::device_bytes},
                                         {"host_bytes", &Machine::host_bytes},
                                         {"disk_bytes", &Machine::disk_bytes}}};

[[noreturn]] void refuse(const json::Document& document, const std::string& what) {
  throw ConfigError({.what = what,
                     .where = document.source,
                     .fix = "docs/tools.md lists the keys of such a file"});
}

const json::Value& member(const json::Document& document, const char* key) {
  const json::Value* const found = document.root.find(key);
  if (found == nullptr) refuse(document, fmt::format("a machine's file has no \"{}\"", key));
  return *found;
}

double number(const json::Document& document, const char* key) {
  const json::Value& value = member(document, key);
  const double number = value.real() != nullptr      ? *value.real()
                        : value.integer() != nullptr ? static_cast<double>(*value.integer())
                                                     : -1;
  if (number < 0) refuse(document, fmt::format("\"{}\" is not a number of 0 or more", key));
  return number;
}

}  // namespace

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const Sheet& sheet : kSheets) names.emplace_back(sheet.name);
  names.emplace_back("cpu");
  return names;
}

Machine find_machine(const std::string& name_or_file) {
  for (const Sheet& sheet : kSheets) {
    if (name_or_file == sheet.name) return from_sheet(sheet);
  }
  if (name_or_file == "cpu") return processor();
  if (std::filesystem::exists(name_or_file)) {
    return read_machine(json::read_file(name_or_file));
  }
  const std::vector<std::string> names = machine_names();
  const std::string nearest = nearest_name(name_or_file, names);
  throw ConfigError(
      {.what = fmt::format("there is no machine and no file called \"{}\"", name_or_file),
       .where = "--machine",
       .fix = fmt::format("{}use one of {}, or a file with the keys that docs/tools.md lists",
                          nearest.empty() ? "" : fmt::format("did you mean {}? ", nearest),
                          fmt::join(names, ", "))});
}

Machine read_machine(const json::Document& document) {
  Machine machine;
  const std::string* const name = member(document, "name").text();
  if (name == nullptr) refuse(document, "\"name\" is not a text");
  machine.name = *name;
  const bool* const on_gpu = member(document, "on_gpu").boolean();
  if (on_gpu == nullptr) refuse(document, "\"on_gpu\" is neither true nor false");
  machine.on_gpu = *on_gpu;
  machine.devices_per_host = static_cast<int>(number(document, "devices_per_host"));
  if (machine.devices_per_host < 1) refuse(document, "\"devices_per_host\" is less than 1");
  for (const Size& size : kSizes) {
    machine.*size.bytes = static_cast<std::int64_t>(number(document, size.key));
  }
  for (const Figure& figure : kFigures) machine.*figure.rate = number(document, figure.key);
  machine.collective_delay = Seconds(number(document, "collective_delay_seconds"));
  machine.kernel_delay = Seconds(number(document, "kernel_delay_seconds"));
  for (const double rate : {machine.flops_16, machine.flops_32, machine.memory_rate,
                            machine.link_rate, machine.host_update_rate}) {
    if (rate == 0) refuse(document, "a rate that every step needs is 0");
  }
  return machine;
}

json::Value to_json(const Machine& machine) {
  json::Value value{json::Object{}};
  value.add("name", json::Value(machine.name))
      .add("on_gpu", json::Value(machine.on_gpu))
      .add("devices_per_host", json::Value(machine.devices_per_host));
  for (const Size& size : kSizes) value.add(size.key, json::Value(machine.*size.bytes));
  for (const Figure& figure : kFigures) value.add(figure.key, json::Value(machine.*figure.rate));
  value.add("collective_delay_seconds", json::Value(machine.collective_delay.count()))
      .add("kernel_delay_seconds", json::Value(machine.kernel_delay.count()));
  return value;
}

}  // namespace capstan::tune
