#include "capstan/tune/candidate.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "capstan/tune/table.h"

namespace capstan::tune {
namespace {

using store::Placement;

std::string_view where(Placement placement) {
  return placement == Placement::nvme ? "on disks" : "in host memory";
}

Ground ground_of(const Machine& machine) {
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return {.on_gpu = machine.on_gpu, .threads = std::max(1, cores / machine.devices_per_host)};
}

// Of `base`, with micro-batches of so many samples; false: the samples of a step are no multiple.
bool set_batch(const Workload& base, std::int64_t micro, Workload& work) {
  engine::BatchOptions& batch = work.options.batch;
  const int data = base.ranks / work.options.mesh.product();
  batch.micro_samples = micro;
  // A pipeline lives from many micro-batches.
  const std::int64_t least = work.options.mesh.pipe > 1 ? 4 * work.options.mesh.pipe : 1;
  if (base.options.batch.train_samples <= 1) {
    batch.accumulation_steps = least;
  } else {
    if (base.options.batch.train_samples % (micro * data) != 0) return false;
    batch.accumulation_steps = base.options.batch.train_samples / (micro * data);
  }
  batch.train_samples = micro * data * batch.accumulation_steps;
  return true;
}

bool place(const Choices& choices, bool optimizer, bool params, bool on_disk, Workload& work) {
  store::Options& store = work.options.store;
  const int stage = work.options.shard.stage;
  if ((optimizer && stage < 1) || (params && stage < 3)) return false;
  if (on_disk && (!optimizer || choices.nvme_paths.empty())) return false;
  const Placement away = on_disk ? Placement::nvme : Placement::host;
  store.optimizer.placement = optimizer ? away : Placement::device;
  store.params.placement = params ? away : Placement::device;
  store.optimizer.nvme_paths = store.params.nvme_paths =
      on_disk ? choices.nvme_paths : std::vector<std::string>{};
  return true;
}

// A larger micro-batch needs more memory: after one that does not fit, none is tried.
void add_micro_batches(const Workload& base, Workload work, const Machine& machine,
                       const Choices& choices, std::vector<Candidate>& all) {
  for (const std::int64_t micro : choices.micro_samples) {
    if (!set_batch(base, micro, work)) continue;
    all.push_back(weigh(work, machine));
    if (!all.back().fits()) return;
  }
}

void add_placements(const Workload& base, Workload work, const Machine& machine,
                    const Choices& choices, std::vector<Candidate>& all) {
  for (const bool optimizer : choices.offload_optimizer) {
    for (const bool params : choices.offload_params) {
      for (const bool on_disk : {false, true}) {
        // Where ranks compute on the processor, host memory is the memory they have anyway.
        if ((optimizer || params) && !on_disk && !machine.on_gpu) continue;
        if (!place(choices, optimizer, params, on_disk, work)) continue;
        for (const bool recompute : choices.recompute) {
          work.options.recompute.enabled = recompute;
          add_micro_batches(base, work, machine, choices, all);
        }
      }
    }
  }
}

bool can_be(const Workload& work, const engine::MeshOptions& mesh) {
  const models::Sizes sizes = work.model->sizes();
  return work.ranks % mesh.product() == 0 && sizes.heads % mesh.tensor == 0 &&
         sizes.layers >= mesh.pipe && work.tokens % mesh.sequence == 0 &&
         sizes.heads % mesh.sequence == 0 && (mesh.tensor == 1 || mesh.sequence == 1);
}

}  // namespace

std::string title_of(const Workload& work) {
  const engine::Options& options = work.options;
  std::string title = fmt::format("stage {}", options.shard.stage);
  const store::Options& store = options.store;
  const bool params = store.params.placement != Placement::device;
  const bool optimizer = store.optimizer.placement != Placement::device;
  if (params || optimizer) {
    title += fmt::format(", {} {}",
                         params && optimizer ? "all"
                         : params            ? "parameters"
                                             : "optimizer",
                         where(params ? store.params.placement : store.optimizer.placement));
  }
  if (options.mesh.tensor > 1) title += fmt::format(", tensor {}", options.mesh.tensor);
  if (options.mesh.pipe > 1) title += fmt::format(", pipe {}", options.mesh.pipe);
  if (options.mesh.sequence > 1) title += fmt::format(", sequence {}", options.mesh.sequence);
  if (options.recompute.enabled) title += ", recompute";
  return title + fmt::format(", micro-batch {}", options.batch.micro_samples);
}

Candidate weigh(const Workload& work, const Machine& machine) {
  Candidate candidate{.title = title_of(work), .work = work};
  candidate.memory = estimate_memory(work, ground_of(machine));
  candidate.time = step_time(work, machine);
  candidate.tokens_per_second = tokens_per_second(work, candidate.time);
  candidate.lacks = too_little(candidate.memory, work.ranks, machine);
  return candidate;
}

std::vector<Candidate> rank(const Workload& base, const Machine& machine, const Choices& choices) {
  std::vector<Candidate> all;
  for (const engine::MeshOptions& mesh : choices.meshes) {
    if (!can_be(base, mesh)) continue;
    for (const int stage : choices.stages) {
      Workload work = base;
      work.options.mesh = mesh;
      work.options.shard.stage = stage;
      work.options.shard.reduce_schedule.reset();
      // On one rank a stage shards nothing; offloading needs one all the same.
      const int data = base.ranks / mesh.product();
      if (data == 1 && (stage == 1 || (stage == 2 && !machine.on_gpu))) continue;
      add_placements(base, work, machine, choices, all);
    }
  }
  std::ranges::stable_sort(all, [](const Candidate& a, const Candidate& b) {
    if (a.fits() != b.fits()) return a.fits();
    if (!a.fits()) return a.memory.device_need() < b.memory.device_need();
    return a.tokens_per_second > b.tokens_per_second;
  });
  return all;
}

}  // namespace capstan::tune
