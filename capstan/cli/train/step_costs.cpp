#include "capstan/cli/train/step_costs.h"

#include <cerrno>
#include <cstdio>
#include <fstream>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/engine/engine_state.h"
#include "capstan/io/failure.h"

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

double seconds(const profile::Record& record) {
  return std::chrono::duration<double>(record.device.length).count();
}

double sum_of(const std::vector<profile::Record>& records, Kind kind, std::string_view name,
              const std::string* unit = nullptr) {
  double sum = 0;
  for (const profile::Record& record : records) {
    const bool counts = record.kind == kind && record.name == name;
    if (counts && (unit == nullptr || record.unit == *unit)) sum += seconds(record);
  }
  return sum;
}

}  // namespace

StepCosts::StepCosts(Engine& engine, const models::Blueprint& blueprint, std::int64_t tokens)
    : engine_(engine), parts_(parts_of(engine, blueprint, tokens)) {}

void StepCosts::begin(std::int64_t steps_before) {
  if (steps_before != engine_.options().profile.flops.step) return;
  reader_.emplace(engine_.group().recorder(), profile::Kinds{Kind::compute, Kind::phase});
  began_ = std::chrono::steady_clock::now();
}

std::optional<std::string> StepCosts::end() {
  if (!reader_) return std::nullopt;
  engine_.group().recorder()->settle();
  const std::vector<profile::Record> records = reader_->take();
  reader_.reset();
  const profile::FlopsOptions& shown = engine_.options().profile.flops;
  return costs_report(modules(records), facts(records),
                      {shown.depth, shown.top_modules, shown.detailed});
}

// A part without a time of its own has that of the units inside it, if there are any.
std::vector<profile::ModuleCost> StepCosts::modules(
    const std::vector<profile::Record>& records) const {
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
    if (part.unit.empty()) continue;
    const profile::PerPart took = {sum_of(records, Kind::compute, "forward", &part.unit),
                                   sum_of(records, Kind::compute, "backward", &part.unit),
                                   sum_of(records, Kind::compute, "recompute", &part.unit)};
    for (const std::size_t each : open) {
      for (std::size_t i = 0; i < took.size(); ++i) {
        // Recomputation runs inside of backward.
        const double own = i == 1 ? took[1] - took[2] : took[i];
        modules[each].seconds[i] += own / micro_batches;
      }
    }
  }
  return modules;
}

profile::CostFacts StepCosts::facts(const std::vector<profile::Record>& records) const {
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
          .forward_s = sum_of(records, Kind::compute, "forward") / micro_batches,
          .backward_s = sum_of(records, Kind::phase, "backward") / micro_batches,
          .update_s = sum_of(records, Kind::phase, "step"),
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
