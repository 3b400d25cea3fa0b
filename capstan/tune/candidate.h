// One way to train a workload on a machine, with what it needs and how fast it would be; and the
// best of many. Pure.
#pragma once

#include <string>
#include <vector>

#include "capstan/tune/machine.h"
#include "capstan/tune/memory.h"
#include "capstan/tune/step_time.h"
#include "capstan/tune/workload.h"

namespace capstan::tune {

struct Candidate {
  std::string title;  // "stage 2, optimizer in host memory, recompute, micro-batch 4"
  Workload work;
  MemoryEstimate memory;
  StepTime time;
  double tokens_per_second = 0;
  std::string lacks;  // what there is too little of, with figures; empty: it fits

  bool fits() const { return lacks.empty(); }
};

// Throws ConfigError where such a workload cannot be.
Candidate weigh(const Workload& workload, const Machine& machine);

// What may be chosen. Every list has at least one entry.
struct Choices {
  std::vector<int> stages = {0, 1, 2, 3};
  std::vector<bool> offload_optimizer = {false, true};
  std::vector<bool> offload_params = {false, true};
  std::vector<bool> recompute = {false, true};
  std::vector<std::int64_t> micro_samples = {1, 2, 4, 8, 16, 32, 64};
  std::vector<engine::MeshOptions> meshes = {{}};
  std::vector<std::string> nvme_paths;  // given: offloading to disks may be chosen too
};

// All that differ and can be, those that fit first, the fastest first. Where `workload` says how
// many samples a step has (train_samples > 1), they accumulate up to it, and micro-batches that do
// not divide it are left out.
std::vector<Candidate> rank(const Workload& workload, const Machine& machine,
                            const Choices& choices);

std::string title_of(const Workload& workload);

}  // namespace capstan::tune
