// Estimates of memory as text for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "capstan/json/value.h"
#include "capstan/tune/machine.h"
#include "capstan/tune/memory.h"

namespace capstan::tune {

// One way to place a model.
struct MemoryRow {
  engine::Options options;
  MemoryEstimate memory;
  std::string lacks;  // what a machine has too little of; empty: it fits
};

// What these ranks need and the machine does not have, with figures; empty: they fit.
std::string too_little(const MemoryEstimate& memory, int ranks, const Machine& machine);

// Every stage with every placement that it can have, each with and without recomputation.
std::vector<engine::Options> all_ways(const engine::Options& options);

// Without spaces at the ends of lines.
std::string trim_lines(const std::string& text);

// A line and a bar for each: what fills the device at the worst moment.
std::string memory_table(const std::vector<MemoryRow>& rows, const Machine& machine);
// One of them, phase by phase.
std::string phase_table(const MemoryRow& row);
json::Value to_json(const MemoryRow& row);

}  // namespace capstan::tune
