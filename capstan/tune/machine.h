// What a machine can do, as figures: by name, or from a file. Plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "capstan/json/reader.h"
#include "capstan/json/value.h"

namespace capstan::tune {

using Seconds = std::chrono::duration<double>;

// Rates are per second, and what programs reach rather than what data sheets promise.
struct Machine {
  std::string name;
  bool on_gpu = true;  // false: ranks compute on the processor
  int devices_per_host = 8;
  // 0: not known, and never too little.
  std::int64_t device_bytes = 0;  // on_gpu: of one GPU
  std::int64_t host_bytes = 0;    // of one host
  std::int64_t disk_bytes = 0;    // likewise

  double flops_16 = 0;          // of large matrix products in bf16 and fp16, of one device
  double flops_32 = 0;          // and in fp32
  double memory_rate = 0;       // bytes: device memory, read and written
  double link_rate = 0;         // bytes: from one device to others of its host
  double network_rate = 0;      // bytes: from one device to those of other hosts
  double host_link_rate = 0;    // bytes: between a device and its host, each way
  double host_update_rate = 0;  // elements: AdamW in host memory, of all cores of a host
  double disk_read_rate = 0;    // bytes: of one host
  double disk_write_rate = 0;
  Seconds collective_delay{30e-6};  // of one, however small
  Seconds kernel_delay{0};          // of one operation of a model, however small

  bool operator==(const Machine&) const = default;
};

// Built in, with public figures: h200, a100, rtx3090, ...; and "cpu", a rough one.
std::vector<std::string> machine_names();
// A name of those, or a file with the keys that to_json() writes. Throws ConfigError.
Machine find_machine(const std::string& name_or_file);

// Throws ConfigError that names the key.
Machine read_machine(const json::Document& document);
json::Value to_json(const Machine& machine);

}  // namespace capstan::tune
