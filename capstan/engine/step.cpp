#include "capstan/engine/step.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>

#include "capstan/base/error.h"
#include "capstan/engine/guarded.h"
#include "capstan/shard/access.h"

namespace capstan::engine {

Step::Step(const Common& common, Backward& backward, Saver& saver, optim::WorkerPool& workers,
           RateSource rates)
    : common_(common),
      backward_(backward),
      saver_(saver),
      workers_(workers),
      rates_(std::move(rates)),
      updates_early_(common.sharded.early_updates() != nullptr && common.updater.updates_early()) {
  if (updates_early_) common_.sharded.before_backward = [this] { open_early(); };
  if (common_.device().is_cuda()) gate_ = std::make_unique<GradGate>(common_.sharded);
}

Step::~Step() {
  common_.sharded.before_backward = nullptr;
  common_.sharded.stop_updates();  // they use the guess, and what goes after this
}

StepReport Step::take(std::optional<bool> boundary) {
  Progress& progress = common_.run.progress;
  const BatchOptions& batch = common_.options.batch;
  const bool takes_step = boundary.value_or(common_.run.next_ends_step(batch));
  if (takes_step) {
    backward_.take_given();
    saver_.before_change();
    // When these throw, nothing has happened here and the group lives.
    shard::take_given(common_.sharded);
    saver_.look_after();
  }
  ++progress.micro_steps;
  if (!takes_step) return {};
  // Whoever names the boundary may have called this for the last of several backwards only.
  const std::int64_t per_step = batch.accumulation_steps;
  progress.micro_steps = (progress.micro_steps + per_step - 1) / per_step * per_step;
  StepReport report;
  guarded(common_, Phase::step, [&] { report = end_step(); });
  if (updates_early_) early_step_ended();
  saver_.training_began();
  common_.log.phase_ended(Phase::step, common_.sharded.ledger());
  common_.log.step_ended(progress, report.lr, common_.sharded.ledger());
  progress.samples_per_second = common_.log.samples_per_second();
  return report;
}

StepReport Step::end_step() {
  const at::NoGradGuard no_grad;
  shard::ShardedModel& sharded = common_.sharded;
  RunState& run = common_.run;
  const precision::Options& precision = common_.options.precision;
  StepReport report{.boundary = true, .loss_scale = backward_.loss_scale(), .lr = learning_rates()};
  sharded.finish_gradients();
  ++run.progress.steps;
  run.progress.samples += common_.options.batch.train_samples;
  const bool look = precision.scales_loss() || precision.check_grad_overflow;
  guessed_ = false;
  common_.updater.expect_update(sharded);
  const GradNorm norm = check_and_apply(report, look);
  report.grad_norm = norm.sum_norm * backward_.gradient_factor();
  const bool overflowed = look && norm.non_finite.has_value();
  report.applied = !overflowed;
  const precision::LossScaleState before = run.loss_scale;
  const auto next = precision::next_loss_scale(precision, before, overflowed);
  run.loss_scale = next.state;
  if (overflowed) {
    ++run.progress.skipped;
    report.non_finite = sharded.plan().params[static_cast<std::size_t>(*norm.non_finite)].name;
    common_.log.say(LogLevel::warning, precision::skip_report(before, next, report.non_finite));
    if (precision::stops_run(next.event)) {
      throw ConfigError(precision::stop_error(next, report.non_finite));
    }
  }
  sharded.clear_gradients();
  return report;
}

// On a GPU the update is enqueued behind the check and reads its outcome there; the host learns it
// while the device is still at work.
GradNorm Step::check_and_apply(const StepReport& report, bool look) {
  const double clipping = common_.options.gradient_clipping;
  const double average = backward_.gradient_factor();
  if (!look && clipping <= 0) {
    apply(report, average);
    return {};
  }
  GradNorm norm;
  if (gate_ != nullptr) {
    gate_->start(common_.sharded, {average, clipping, look}, {workers_});
    if (common_.updater.takes_gate()) {
      apply(report, average, gate_->gate());
      return gate_->finish(common_.group);
    }
    norm = gate_->finish(common_.group);
  } else {
    norm = measure_gradients(common_.sharded, {workers_});
  }
  if (look && norm.non_finite.has_value()) return norm;
  double factor = average;
  if (clipping > 0) {
    // A little above the limit counts as at it, as users of the same key know it.
    const double grad_norm = norm.sum_norm * average;
    factor /= std::max(1.0, (grad_norm + 1e-6) / clipping);
  }
  apply(report, factor);
  return norm;
}

void Step::apply(const StepReport& report, double factor, const optim::StepGate* gate) {
  const RunState& run = common_.run;
  UpdateScalars scalars{.step = run.optimizer_steps(), .grad_factor = factor, .lr = report.lr};
  scalars.gate = gate;
  if (rates_.schedule.has_value())
    scalars.momentum = rates_.schedule->at(run.schedule_steps() - 1, 0).momentum;
  guessed_ = factor == backward_.gradient_factor();
  if (guess_.has_value()) common_.sharded.early_updates()->close(/*keep=*/*guess_ == scalars);
  common_.updater.update(common_.sharded, scalars);
}

// As apply() finds them if the gradients are neither clipped nor bad.
UpdateScalars Step::guess() const {
  const RunState& run = common_.run;
  UpdateScalars scalars{.step = run.optimizer_steps() + 1,
                        .grad_factor = backward_.gradient_factor(),
                        .lr = learning_rates()};
  if (rates_.schedule.has_value())
    scalars.momentum = rates_.schedule->at(run.schedule_steps(), 0).momentum;
  return scalars;
}

void Step::open_early() {
  const bool measured =
      common_.options.store.optimizer.early_updates == store::EarlyUpdates::measured;
  if (!backward_.ends_step() || (measured && !early_choice_.early())) return;
  shard::EarlyUpdates& early = *common_.sharded.early_updates();
  UpdateScalars now = guess();
  if (early.is_open() && guess_ == now) return;
  early.close(/*keep=*/false);
  guess_ = std::move(now);
  early.open([this](int unit, shard::FreshStates& fresh, const shard::EarlyUpdates::GoOn& go_on) {
    common_.updater.update_early(common_.sharded, unit, *guess_, fresh, go_on);
  });
}

void Step::early_step_ended() {
  const auto now = std::chrono::steady_clock::now();
  early_choice_.step_ended(guess_.has_value(), guessed_, now - last_step_);
  last_step_ = now;
  guess_.reset();
}

void Step::set_hyper_params(const std::vector<optim::HyperParams>& groups) {
  common_.sharded.settle_updates();  // a late one still reads them
  common_.updater.set_hyper_params(groups);
  rates_.base.clear();
  for (const optim::HyperParams& hyper : groups) rates_.base.push_back(hyper.lr);
}

std::vector<double> Step::learning_rates() const {
  if (!rates_.schedule.has_value()) return rates_.base;
  std::vector<double> rates;
  const std::size_t groups = std::max<std::size_t>(1, rates_.base.size());
  rates.reserve(groups);
  for (std::size_t g = 0; g < groups; ++g) {
    rates.push_back(rates_.schedule->at(common_.run.schedule_steps(), static_cast<int>(g)).lr);
  }
  return rates;
}

}  // namespace capstan::engine
