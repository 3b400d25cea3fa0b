#include "capstan/engine/monitoring.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "capstan/base/text.h"
#include "capstan/engine/memory_use.h"
#include "capstan/engine/together.h"

namespace capstan::engine {
namespace {

using HeldBytes = std::vector<std::pair<std::string, std::int64_t>>;

void add_held(const store::Ledger& ledger, const std::string& where, HeldBytes& held) {
  const store::MemoryUse now = ledger.now();
  if (!where.empty() && now.total() == 0) return;
  for (int i = 0; i < store::kMemoryKinds; ++i) {
    const auto kind = static_cast<store::MemoryKind>(i);
    held.emplace_back(where + std::string(to_string(kind)), now[kind]);
  }
}

// Of the first group that learns: one that serves no parameter has the rate 0. NaN where the
// optimizer keeps its rates to itself.
double rate_of(const std::vector<double>& rates) {
  if (rates.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto learns = std::ranges::find_if(rates, [](double rate) { return rate != 0; });
  return learns == rates.end() ? 0.0 : *learns;
}

monitor::Facts facts_of(const Options& options, comm::MeshGroups& mesh, c10::Device device) {
  return {{"ranks", std::to_string(mesh.mesh().world_size())},
          {"device", device.str()},
          {"ZeRO stage", std::to_string(options.shard.stage)},
          {"parameters in", std::string(name(options.precision.params))},
          {"libtorch", TORCH_VERSION}};
}

}  // namespace

monitor::StepStats stats_of(const StepReport& report, const Progress& progress,
                            shard::ShardedModel& sharded, const precision::Options& precision) {
  store::Places& places = sharded.places();
  const c10::Device device = sharded.device();
  monitor::StepStats stats;
  stats.step = progress.steps;
  stats.samples = progress.samples;
  stats.time_s = monitor::now_s();
  stats.lr = rate_of(report.lr);
  stats.loss_scale = report.loss_scale;
  stats.scales_loss = precision.scales_loss();
  stats.grad_norm = report.grad_norm;
  stats.skipped = !report.applied;
  stats.skipped_steps = progress.skipped;
  stats.times = report.times;
  stats.device_bytes =
      device.is_cpu() ? places.device_ledger().peak_total() : peak_device_bytes(device);
  stats.host_bytes = resident_bytes();
  add_held(places.device_ledger(), "", stats.held_bytes);
  add_held(places.host_ledger(), "host ", stats.held_bytes);
  add_held(places.disk_ledger(), "disk ", stats.held_bytes);
  return stats;
}

Monitoring::Monitoring(const Parts& parts, const MonitorMaker& maker)
    : parts_(parts), on_(parts.options.monitor.any()) {
  if (!on_) return;
  comm::Group& all = parts_.mesh.all();
  const c10::Device device = parts_.sharded.device();
  together(all, device, [&] {
    Monitors more = maker ? maker() : Monitors();
    if (all.rank() > 0 || !more.here) return;
    // At the end of what is there: whether a checkpoint will be loaded is not known yet, and where
    // none is, readers take the steps of the last run.
    log_ = std::make_unique<monitor::Log>(
        parts_.options.monitor,
        monitor::LogParts{.logger = parts_.logger,
                          .facts = facts_of(parts_.options, parts_.mesh, device),
                          .goes_on = true,
                          .others = std::move(more.sinks)});
  });
}

void Monitoring::add_loss(const at::Tensor& loss, bool averaged) {
  if (!on_) return;
  const at::NoGradGuard no_grad;
  const auto steps = static_cast<double>(parts_.options.batch.accumulation_steps);
  const at::Tensor one =
      loss.detach().to(parts_.sharded.device(), at::kFloat).reshape({1}) * (averaged ? 1.0 : steps);
  sum_ = sum_.defined() ? sum_ + one : one;
  ++losses_;
}

void Monitoring::forget_losses() {
  losses_ = 0;
  sum_.reset();
}

// Ranks that share sequences have shares of a loss; of a pipeline, only the last stage has any.
double Monitoring::mean_loss() {
  const at::NoGradGuard no_grad;
  const at::Tensor sum =
      sum_.defined() ? sum_ : at::zeros({1}, at::kFloat).to(parts_.sharded.device());
  const at::Tensor both = at::cat({sum, at::full_like(sum, static_cast<double>(losses_))});
  forget_losses();
  comm::Group& all = parts_.mesh.all();
  if (all.size() > 1) all.all_reduce(both, "mean loss").wait();
  const at::Tensor sums = both.to(at::kCPU, at::kDouble);
  const double count = sums[1].item<double>();
  if (count == 0) return std::numeric_limits<double>::quiet_NaN();
  return sums[0].item<double>() * parts_.mesh.mesh().size(layout::Axis::sequence) / count;
}

void Monitoring::validated(double loss, const Progress& progress) {
  if (!log_) return;
  log_->validation({.step = progress.steps, .samples = progress.samples}, loss);
}

void Monitoring::step_ended(const StepReport& report, const Progress& progress) {
  if (!on_) return;
  const double loss = mean_loss();
  const auto now = std::chrono::steady_clock::now();
  const auto before = std::exchange(last_step_, now);
  if (!log_) return;
  monitor::StepStats stats = stats_of(report, progress, parts_.sharded, parts_.options.precision);
  stats.loss = loss;
  if (before) {
    const std::chrono::duration<double> took = now - *before;
    stats.samples_per_s = static_cast<double>(report.samples) / took.count();
  }
  log_->step(stats);
}

}  // namespace capstan::engine
