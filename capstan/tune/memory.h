// How much memory a workload takes on each rank, phase by phase: the engine's own arithmetic
// (shard/replay.h) beside the model's activations (models/tape.h). Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "capstan/store/ledger.h"
#include "capstan/tune/workload.h"

namespace capstan::tune {

enum class Phase { rest, forward, backward, step };
inline constexpr std::array kPhases = {Phase::rest, Phase::forward, Phase::backward, Phase::step};
std::string_view to_string(Phase phase);  // "between steps", "forward", ...

// Where ranks compute.
struct Ground {
  bool on_gpu = true;
  int threads = 1;       // CPU: of each rank's kernels
  bool receives = true;  // a reduction receives into memory of its own
};

// Of one rank at the moment of a phase when it holds most.
struct DeviceBytes {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t buffers = 0;
  std::int64_t activations = 0;  // and what operations work in
  std::int64_t workspace = 0;    // of collectives and libraries, and memory kept for the next use

  std::int64_t total() const {
    return parameters + gradients + optimizer + buffers + activations + workspace;
  }
};

struct MemoryEstimate {
  std::array<DeviceBytes, kPhases.size()> phases;
  std::int64_t reserve = 0;           // of the device: driver, program, fragmentation
  store::MemoryUse host;              // of one rank, beside the device
  std::int64_t host_activations = 0;  // and its buffers
  store::MemoryUse disk;              // of one rank
  int stage = 0;                      // of a pipeline: the one that holds most

  const DeviceBytes& operator[](Phase phase) const {
    return phases[static_cast<std::size_t>(phase)];
  }
  Phase peak_phase() const;
  std::int64_t peak() const { return (*this)[peak_phase()].total(); }  // without the reserve
  std::int64_t device_need() const { return peak() + reserve; }
  std::int64_t host_need() const { return host.total() + host_activations; }
};

// Of the rank that needs most. Throws ConfigError where such ranks, stages or units cannot be, or
// where the model's kind is not known on paper.
MemoryEstimate estimate_memory(const Workload& workload, const Ground& ground);
// Of any model whose paper is known, say traced from a program; its units are chosen.
MemoryEstimate estimate_paper(const models::Paper& paper, const engine::Options& options, int ranks,
                              const Ground& ground);

}  // namespace capstan::tune
