#include "capstan/cli/train/step_costs.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/engine/engine_state.h"
#include "capstan/io/failure.h"
#include "capstan/profile/timeline.h"
#include "capstan/profile/unit_times.h"

namespace capstan::cli::train {
namespace {

using profile::Kind;

// Of one rank. What ranks share of a sequence, each has its part of.
std::vector<models::PartCost> parts_of(Engine& engine, const models::Blueprint& blueprint,
                                       std::int64_t tokens) {
  const engine::Options& options = engine.options();
  std::vector<models::PartCost> parts =
      blueprint.part_costs({.sequences = options.batch.micro_samples, .tokens = tokens});
  if (parts.empty() || options.mesh.tensor > 1) {
    throw ConfigError({.what = parts.empty() ? "models of this kind cannot be profiled yet"
                                             : "layers that ranks share cannot be profiled yet",
                       .where = "--profile (flops_profiler.enabled)",
                       .fix = parts.empty() ? "leave it out, or use --trace"
                                            : "leave out --tensor, or use --trace"});
  }
  for (models::PartCost& part : parts) {
    part.forward_flops /= options.mesh.sequence;
    part.backward_flops /= options.mesh.sequence;
    part.recomputed_flops /= options.mesh.sequence;
  }
  return parts;
}

// Over the phases of a step.
double phase_seconds(const std::vector<profile::TimelineSpan>& spans, std::string_view name) {
  double sum_us = 0;
  for (const profile::TimelineSpan& span : spans) {
    if (span.lane == profile::Lane::phase && span.name == name) {
      sum_us += span.end_us - span.begin_us;
    }
  }
  return sum_us / 1e6;
}

}  // namespace

StepCosts::StepCosts(Engine& engine, const models::Blueprint& blueprint, std::int64_t tokens)
    : engine_(engine), parts_(parts_of(engine, blueprint, tokens)) {}

void StepCosts::begin(std::int64_t steps_before) {
  if (steps_before != engine_.options().profile.flops.step) return;
  reader_.emplace(engine_.group().recorder(),
                  profile::Kinds{Kind::compute, Kind::wait, Kind::phase});
  began_ = std::chrono::steady_clock::now();
}

std::optional<std::string> StepCosts::end() {
  if (!reader_) return std::nullopt;
  engine_.group().recorder()->settle();
  const std::vector<profile::TimelineSpan> spans =
      profile::to_timeline(reader_->take(), engine_.group().rank(), 0).spans;
  reader_.reset();
  const profile::FlopsOptions& shown = engine_.options().profile.flops;
  const std::vector<profile::ModuleCost> costs = modules(spans);
  return costs_report(costs, facts(spans, costs.front()),
                      {shown.depth, shown.top_modules, shown.detailed});
}

// A part without a time of its own has that of the units inside it, if there are any.
std::vector<profile::ModuleCost> StepCosts::modules(
    const std::vector<profile::TimelineSpan>& spans) const {
  constexpr std::array<const char*, profile::kPassParts> kNames = {"forward", "backward",
                                                                   "recompute"};
  const auto times = profile::unit_times(spans);
  const auto micro_batches = static_cast<double>(engine_.options().batch.accumulation_steps);
  std::vector<profile::ModuleCost> modules;
  std::vector<std::size_t> open;
  for (const models::PartCost& part : parts_) {
    modules.push_back({part.depth,
                       part.name,
                       part.kind,
                       part.parameters,
                       {part.forward_flops, part.backward_flops, part.recomputed_flops}});
    open.resize(static_cast<std::size_t>(part.depth));
    open.push_back(modules.size() - 1);
    for (std::size_t i = 0; i < kNames.size() && !part.unit.empty(); ++i) {
      const auto found = times.find({part.unit, kNames[i]});
      if (found == times.end()) continue;
      for (const std::size_t each : open) {
        modules[each].seconds[i] += found->second / 1e6 / micro_batches;
      }
    }
  }
  return modules;
}

profile::CostFacts StepCosts::facts(const std::vector<profile::TimelineSpan>& spans,
                                    const profile::ModuleCost& model) const {
  const engine::Options& options = engine_.options();
  const auto micro_batches = static_cast<double>(options.batch.accumulation_steps);
  const layout::Mesh& mesh = engine_.mesh().mesh();
  const std::chrono::duration<double> step = std::chrono::steady_clock::now() - began_;
  return {.step = options.profile.flops.step,
          .world_size = engine_.group().size(),
          .data_ranks = mesh.size(layout::kDataAxes),
          .model_ranks = mesh.size(layout::Axis::pipe) * mesh.size(layout::Axis::tensor),
          .micro_batch = options.batch.micro_samples,
          .micro_batches = options.batch.accumulation_steps,
          .forward_s = model.seconds[0],
          .backward_s = phase_seconds(spans, "backward") / micro_batches,
          .update_s = phase_seconds(spans, "step"),
          .step_s = step.count(),
          .recompute_factor = options.profile.flops.recompute_factor};
}

void write_report(const std::string& report, const std::string& path) {
  if (path.empty()) {
    std::fputs(report.c_str(), stdout);
    std::fflush(stdout);
    return;
  }
  std::ofstream file(path);
  file << report << std::flush;
  if (file) return;
  std::fprintf(stderr, "warning: the profile was not written: %s (%s)\n",
               io::errno_text(errno).c_str(), path.c_str());
}

}  // namespace capstan::cli::train
