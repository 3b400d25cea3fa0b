#include "capstan/tune/memory.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/engine/sharding.h"
#include "capstan/pipeline/activations.h"
#include "capstan/shard/choose_units.h"
#include "capstan/shard/memory.h"
#include "capstan/shard/replay.h"

namespace capstan::tune {
namespace {

using store::MemoryKind;

// Beside what libtorch hands out. (Chosen: a CUDA context with its kernels and NCCL's buffers take
// half a GiB to one; the allocator's blocks are a few percent larger than what is asked for.)
constexpr std::int64_t kGpuProgramBytes = std::int64_t{700} << 20;
constexpr std::int64_t kCpuProgramBytes = std::int64_t{300} << 20;
constexpr double kFragmentation = 0.03;
// Of cuBLAS, on the newest cards.
constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{32} << 20;

// One rank of one stage.
struct OnPaper {
  models::Paper paper;
  shard::Plan plan;
  shard::Settings settings;
};

// By the options; what is no unit has no parameters of its own: they are resident.
void choose_units(models::Paper& paper, const shard::Options& options) {
  std::vector<shard::UnitCandidate> candidates;
  for (const models::PaperUnit& unit : paper.units) {
    candidates.push_back({.name = unit.name, .class_name = "", .elems = 0});
  }
  const std::vector<bool> chosen = shard::choose_units(candidates, options);
  for (std::size_t i = 0; i < paper.units.size(); ++i) {
    if (!chosen[i]) paper.units[i].params.clear();
  }
}

OnPaper shard_paper(models::Paper paper, const engine::Options& options, int ranks,
                    const Ground& ground) {
  const layout::Mesh mesh = engine::make_mesh(options, ranks);
  std::vector<shard::ParamSpec> params;
  for (const models::PaperParam& param : paper.params) {
    params.push_back({.name = param.name,
                      .sizes = param.sizes,
                      .dtype = param.dtype.value_or(options.precision.params),
                      .trainable = param.trainable});
  }
  std::vector<shard::BoundarySpec> boundaries;
  for (const models::PaperUnit& unit : paper.units) boundaries.push_back({unit.name, unit.params});
  OnPaper made{.paper = std::move(paper)};
  made.plan = shard::make_plan(
      std::move(params), boundaries,
      engine::plan_options(options, mesh,
                           ground.on_gpu ? engine::kCudaAlignBytes : engine::kCpuAlignBytes));
  made.settings = engine::shard_settings(options, mesh, engine::state_settings(options));
  if (options.store.optimizer.auto_ratio && made.settings.host.used() &&
      options.store.device_bytes) {
    shard::spill(made.plan, *options.store.device_bytes - options.store.activation_bytes,
                 made.settings);
  }
  return made;
}

models::Paper paper_of(const Workload& work, const Ground& ground,
                       std::optional<models::BlockRange> part) {
  const engine::Options& options = work.options;
  models::Paper paper = work.model->with({.recompute = options.recompute, .part = part})
                            ->on_paper({.samples = options.batch.micro_samples,
                                        .tokens = work.tokens,
                                        .dtype = options.precision.params,
                                        .on_gpu = ground.on_gpu,
                                        .tensor = options.mesh.tensor,
                                        .sequence = options.mesh.sequence,
                                        .threads = ground.threads});
  if (paper.params.empty()) {
    throw ConfigError({.what = fmt::format("a {} is not known on paper", work.model->title()),
                       .where = "the model",
                       .fix = "estimate it in Python: capstan.estimate(model, batch)"});
  }
  choose_units(paper, options.shard);
  return paper;
}

// The largest of what was seen in each phase.
class Peaks {
 public:
  Peaks(const OnPaper& made, const Ground& ground)
      : buffers_(made.paper.buffer_bytes), libraries_(ground.on_gpu ? kGemmWorkspaceBytes : 0) {}

  void see(Phase phase, const shard::Replay::Peak& peak) {
    const DeviceBytes bytes{.parameters = peak.use[MemoryKind::parameters],
                            .gradients = peak.use[MemoryKind::gradients],
                            .optimizer = peak.use[MemoryKind::optimizer],
                            .buffers = buffers_,
                            .activations = peak.beside,
                            .workspace = peak.workspace + libraries_};
    DeviceBytes& most = phases[static_cast<std::size_t>(phase)];
    if (bytes.total() > most.total()) most = bytes;
  }

  std::array<DeviceBytes, kPhases.size()> phases;

 private:
  std::int64_t buffers_;
  std::int64_t libraries_;
};

// One micro-batch; `kept`: activations of others meanwhile.
void run_tape(const OnPaper& made, shard::Replay& replay, std::int64_t kept, Peaks* peaks) {
  using Kind = models::TapeEvent::Kind;
  std::int64_t held = kept;
  replay.beside(held);
  replay.reset_peak();
  for (const models::TapeEvent& event : made.paper.tape) {
    switch (event.kind) {
      case Kind::take:
        replay.beside(held += event.bytes);
        break;
      case Kind::give:
        replay.beside(held -= event.bytes);
        break;
      case Kind::begin_use:
        replay.begin_use(event.index);
        break;
      case Kind::end_use:
        replay.end_use(event.index);
        break;
      case Kind::begin_backward:
        if (peaks != nullptr) peaks->see(Phase::forward, replay.peak());
        replay.reset_peak();
        replay.begin_backward();
        break;
      case Kind::gradient:
        replay.gradient(event.index);
        break;
      case Kind::end_backward:
        replay.end_backward();
        break;
    }
  }
  if (peaks != nullptr) peaks->see(Phase::backward, replay.peak());
  replay.beside(0);
}

// What is learnt in the first step, and what is kept for the next, is there in the last.
constexpr int kSteps = 4;
std::array<DeviceBytes, kPhases.size()> run_steps(const OnPaper& made, std::int64_t accumulated,
                                                  const Ground& ground, std::int64_t kept) {
  shard::Replay replay(made.plan, made.settings,
                       {.keeps_blocks = !ground.on_gpu, .receives = ground.receives});
  Peaks peaks(made, ground);
  const auto micro_batches = std::min<std::int64_t>(accumulated, 3);
  for (int step = 0; step < kSteps; ++step) {
    Peaks* const seen = step + 1 == kSteps ? &peaks : nullptr;
    replay.reset_peak();
    if (seen != nullptr) seen->see(Phase::rest, replay.peak());
    for (std::int64_t i = 0; i < micro_batches; ++i) run_tape(made, replay, kept, seen);
    replay.reset_peak();
    replay.finish_gradients();
    replay.step();
    if (seen != nullptr) seen->see(Phase::step, replay.peak());
  }
  return peaks.phases;
}

// Buffers that what lives on disks passes through.
std::int64_t disk_buffers(const OnPaper& made) {
  const shard::Settings& settings = made.settings;
  const shard::Homes& homes = settings.host.homes;
  std::int64_t largest = 0;
  std::int64_t params = 0;
  for (const shard::UnitSpec& unit : made.plan.units) {
    largest = std::max(largest, unit.layout.shard_elems());
    params += unit.layout.shard_elems() * size_bytes(unit.dtype);
  }
  std::int64_t bytes = 0;
  if (homes.optimizer.on_disk()) {
    const auto moments = static_cast<std::int64_t>(settings.states.moment_names.size());
    const std::int64_t elem =
        size_bytes(settings.states.master) + moments * size_bytes(settings.states.moments);
    bytes +=
        settings.host.streams.buffer_count * std::min(largest, settings.host.piece_elems) * elem;
  }
  if (homes.params.on_disk()) bytes += std::min(params, settings.host.read_ahead.limit_bytes);
  return bytes;
}

MemoryEstimate estimate(const OnPaper& made, std::int64_t accumulated, const Ground& ground,
                        int micro_batches_held) {
  const int others = std::max(0, micro_batches_held - 1);
  MemoryEstimate estimate;
  estimate.phases = run_steps(made, accumulated, ground, others * made.paper.saved_bytes);
  estimate.host = shard::host_forecast(made.plan, made.settings);
  estimate.host_activations = micro_batches_held * made.paper.saved_host_bytes + disk_buffers(made);
  estimate.disk = shard::disk_forecast(made.plan, made.settings);
  const auto share = static_cast<double>(estimate.peak()) * kFragmentation;
  estimate.reserve =
      (ground.on_gpu ? kGpuProgramBytes : kCpuProgramBytes) + static_cast<std::int64_t>(share);
  return estimate;
}

}  // namespace

std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::rest:
      return "between steps";
    case Phase::forward:
      return "forward";
    case Phase::backward:
      return "backward";
    case Phase::step:
      break;
  }
  return "step";
}

Phase MemoryEstimate::peak_phase() const {
  return *std::ranges::max_element(kPhases, {},
                                   [this](Phase phase) { return (*this)[phase].total(); });
}

MemoryEstimate estimate_paper(const models::Paper& paper, const engine::Options& options, int ranks,
                              const Ground& ground) {
  return estimate(shard_paper(paper, options, ranks, ground), options.batch.accumulation_steps,
                  ground, 1);
}

MemoryEstimate estimate_memory(const Workload& work, const Ground& ground) {
  const engine::Options& options = work.options;
  const int stages = options.mesh.pipe;
  if (stages == 1) {
    return estimate_paper(paper_of(work, ground, std::nullopt), options, work.ranks, ground);
  }
  const std::vector<models::BlockRange> parts = cut_model(*work.model, stages, work.tokens);
  const std::int64_t count = options.batch.accumulation_steps;
  const std::vector<int> held = pipeline::peak_activations(pipeline::make_schedule(
      work.schedule, {.stages = stages, .micro_batches = static_cast<int>(count)}));
  std::optional<MemoryEstimate> most;
  // Of the stages between the ends, which have the same blocks, the first holds most micro-batches.
  for (const int stage : {0, std::min(1, stages - 1), stages - 1}) {
    const auto index = static_cast<std::size_t>(stage);
    const OnPaper made =
        shard_paper(paper_of(work, ground, parts[index]), options, work.ranks, ground);
    MemoryEstimate next = estimate(made, count, ground, held[index]);
    next.stage = stage;
    if (!most || next.device_need() > most->device_need()) most = next;
  }
  return *most;
}

}  // namespace capstan::tune
