#include "capstan/tune/plan.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/engine/ladder.h"

namespace capstan::tune {
namespace {

using engine::Rung;
using store::Placement;

// Where the ladder begins: everything on every device, as large micro-batches as asked for.
Workload plain(const Workload& work) {
  Workload start = work;
  start.options.shard.stage = 0;
  start.options.shard.reduce_schedule.reset();
  start.options.recompute.enabled = false;
  start.options.store.optimizer.placement = Placement::device;
  start.options.store.params.placement = Placement::device;
  start.options.mesh = {};
  engine::BatchOptions& batch = start.options.batch;
  batch.accumulation_steps =
      std::max<std::int64_t>(1, batch.train_samples / (batch.micro_samples * work.ranks));
  batch.train_samples = batch.micro_samples * batch.accumulation_steps * work.ranks;
  return start;
}

std::vector<Step> climb_down(const Question& ask, int ranks) {
  Workload work = ask.work;
  work.ranks = ranks;
  work = plain(work);
  std::vector<Step> steps;
  bool taken = false;
  const auto add = [&](std::string title) {
    Step step{.title = std::move(title), .candidate = weigh(work, ask.machine)};
    if (taken) {
      step.verdict = Step::Verdict::not_needed;
    } else if (step.candidate.fits()) {
      step.verdict = Step::Verdict::taken;
      taken = true;
    }
    steps.push_back(std::move(step));
  };
  add("stage 0, nothing offloaded");
  const engine::Ground ground{
      .ranks = ranks, .on_gpu = ask.machine.on_gpu, .nvme_paths = ask.nvme_paths};
  for (const Rung rung : engine::ladder()) {
    // Users try stage 3 by itself before they offload again.
    if (rung == Rung::stage3) work.options.store.optimizer.placement = Placement::device;
    if (rung == Rung::nvme && ask.nvme_paths.empty()) continue;
    const auto next = engine::take(rung, work.options, ground);
    if (!next) continue;
    work.options = *next;
    add(std::string(to_string(rung)));
  }
  return steps;
}

std::vector<engine::MeshOptions> meshes(const Question& ask, int ranks) {
  std::vector<engine::MeshOptions> all = {{}};
  for (int tensor = 1; tensor <= std::min(ranks, ask.machine.devices_per_host); tensor *= 2) {
    for (int pipe = 1; pipe <= 64 && tensor * pipe <= ranks; pipe *= 2) {
      if (tensor * pipe > 1) all.push_back({.pipe = pipe, .tensor = tensor});
    }
  }
  return all;
}

Choices choices_of(const Question& ask, int ranks) {
  Choices choices;
  choices.nvme_paths = ask.nvme_paths;
  choices.meshes = meshes(ask, ranks);
  return choices;
}

std::vector<Candidate> rank_on(const Question& ask, int ranks) {
  Workload work = ask.work;
  work.ranks = ranks;
  std::vector<Candidate> all = rank(work, ask.machine, choices_of(ask, ranks));
  if (ask.goal != Goal::largest_batch) return all;
  const auto batch = [](const Candidate& candidate) {
    return candidate.fits() ? candidate.work.options.batch.micro_samples *
                                  (candidate.work.ranks / candidate.work.options.mesh.product())
                            : 0;
  };
  std::ranges::stable_sort(all, std::greater<>(), batch);
  return all;
}

// Numbers of ranks that a job can have, fewest first.
std::vector<int> sizes_up_to(int ranks) {
  std::vector<int> sizes;
  for (int size = 1; size < ranks; size *= 2) sizes.push_back(size);
  sizes.push_back(ranks);
  return sizes;
}

json::Value offload(Placement placement, const std::vector<std::string>& paths) {
  json::Value section{json::Object{}};
  const bool disk = placement == Placement::nvme;
  section.add("device", json::Value(disk ? "nvme" : "cpu"));
  if (disk && !paths.empty()) section.add("nvme_path", json::Value(paths.front()));
  return section;
}

}  // namespace

std::vector<std::string> goal_names() { return {"fastest", "largest-batch", "fewest-gpus"}; }

Goal goal_named(std::string_view name) {
  const std::vector<std::string> names = goal_names();
  const auto found = std::ranges::find(names, name);
  if (found != names.end()) return static_cast<Goal>(found - names.begin());
  throw ConfigError({.what = fmt::format("there is no goal called \"{}\"", name),
                     .where = "--goal",
                     .fix = fmt::format("use one of {}", fmt::join(names, ", "))});
}

Plan make_plan(const Question& ask) {
  const std::vector<int> sizes =
      ask.goal == Goal::fewest_gpus ? sizes_up_to(ask.work.ranks) : std::vector{ask.work.ranks};
  Plan plan;
  for (const int ranks : sizes) {
    plan.ranking = rank_on(ask, ranks);
    if (plan.ranking.empty()) continue;
    if (plan.ranking.front().fits()) {
      plan.best = plan.ranking.front();
      break;
    }
    plan.smallest = plan.ranking.front();
  }
  std::erase_if(plan.ranking, [](const Candidate& candidate) { return !candidate.fits(); });
  plan.ladder = climb_down(ask, plan.best ? plan.best->work.ranks : ask.work.ranks);
  return plan;
}

json::Value configuration_of(const Workload& work) {
  const engine::Options& options = work.options;
  json::Value config{json::Object{}};
  config.add("train_micro_batch_size_per_gpu", json::Value(options.batch.micro_samples))
      .add("gradient_accumulation_steps", json::Value(options.batch.accumulation_steps))
      .add("gradient_clipping", json::Value(options.gradient_clipping));
  json::Value enabled{json::Object{}};
  enabled.add("enabled", json::Value(true));
  if (options.precision.params == DType::bf16) config.add("bf16", enabled);
  if (options.precision.params == DType::fp16) config.add("fp16", enabled);
  json::Value zero{json::Object{}};
  zero.add("stage", json::Value(options.shard.stage));
  const store::OptimizerOptions& optimizer = options.store.optimizer;
  const store::ParamOptions& params = options.store.params;
  if (optimizer.placement != Placement::device) {
    zero.add("offload_optimizer", offload(optimizer.placement, optimizer.nvme_paths));
  }
  if (params.placement != Placement::device) {
    zero.add("offload_param", offload(params.placement, params.nvme_paths));
  }
  config.add("zero_optimization", zero);
  if (options.mesh.tensor > 1) {
    json::Value tensor{json::Object{}};
    config.add("tensor_parallel", tensor.add("autotp_size", json::Value(options.mesh.tensor)));
  }
  if (options.mesh.sequence > 1) {
    config.add("sequence_parallel_size", json::Value(options.mesh.sequence));
  }
  if (options.recompute.enabled) {
    json::Value capstan{json::Object{}};
    config.add("capstan", capstan.add("recompute", json::Value(true)));
  }
  json::Value hyper{json::Object{}};
  hyper.add("lr", json::Value("auto")).add("weight_decay", json::Value(0.1));
  json::Value section{json::Object{}};
  section.add("type", json::Value("AdamW")).add("params", hyper);
  config.add("optimizer", section);
  return config;
}

std::string command_options(const Workload& work) {
  std::string options = fmt::format(" -n {}", work.ranks);
  if (work.options.mesh.pipe > 1) options += fmt::format(" --pipe {}", work.options.mesh.pipe);
  return options;
}

}  // namespace capstan::tune
