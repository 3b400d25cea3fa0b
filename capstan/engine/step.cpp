#include "capstan/engine/step.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/engine/guarded.h"
#include "capstan/shard/access.h"

namespace capstan::engine {

StepReport Step::take(std::optional<bool> boundary) {
  Progress& progress = common_.run.progress;
  const BatchOptions& batch = common_.options.batch;
  const bool takes_step = boundary.value_or(common_.run.next_ends_step(batch));
  if (takes_step) {
    with_.backward.take_given();
    with_.saver.before_change();
    // When these throw, nothing has happened here and the group lives.
    shard::take_given(common_.sharded);
    with_.saver.look_after();
  }
  ++progress.step_calls;
  ++progress.micro_steps;
  if (!takes_step) return {};
  // Whoever names the boundary may have called this for the last of several backwards only.
  const std::int64_t per_step = batch.accumulation_steps;
  progress.micro_steps = (progress.micro_steps + per_step - 1) / per_step * per_step;
  StepReport report;
  guarded(common_, Phase::step, [&] { report = end_step(); });
  with_.early.step_ended(as_guessed_);
  with_.saver.training_began();
  // First, so that its spans are there when the next phase begins.
  if (with_.trace != nullptr) with_.trace->step_begins(progress.steps);
  common_.log.phase_ended(Phase::step, common_.sharded.places().device_ledger());
  report.times = common_.log.step_ended(progress, report, common_.sharded.places().device_ledger());
  common_.monitoring.step_ended(report, progress);
  if (with_.trace != nullptr) with_.trace->step_ended(progress.steps);
  common_.diary.step_ended(progress, common_.sharded, common_.log.owner());
  progress.samples_per_second = common_.log.samples_per_second();
  return report;
}

// Where the caller decides how many backwards make a step, each of them is a micro-batch.
std::int64_t Step::samples() const {
  const BatchOptions& batch = common_.options.batch;
  if (batch.managed_accumulation) return batch.train_samples;
  return batch.micro_samples * common_.mesh.mesh().size(layout::kDataAxes) *
         common_.sharded.gradients().reducer().backwards();
}

StepReport Step::end_step() {
  const at::NoGradGuard no_grad;
  shard::ShardedModel& sharded = common_.sharded;
  RunState& run = common_.run;
  const precision::Options& precision = common_.options.precision;
  StepReport report{
      .boundary = true, .loss_scale = common_.scale.loss_scale, .lr = learning_rates()};
  sharded.finish_gradients();
  ++run.progress.steps;
  report.samples = samples();
  run.progress.samples += report.samples;
  report.log_due = common_.log.due(run.progress.steps);
  const bool look = precision.scales_loss() || precision.check_grad_overflow;
  as_guessed_ = false;
  common_.updater.expect_update(sharded);
  const GradNorm norm = check_and_apply(report, look);
  report.grad_norm = norm.sum_norm * common_.scale.gradient_factor();
  const bool overflowed = look && !norm.finite();
  report.applied = !overflowed;
  const precision::LossScaleState before = run.loss_scale;
  const auto next = precision::next_loss_scale(precision, before, overflowed);
  run.loss_scale = next.state;
  if (overflowed) {
    ++run.progress.skipped;
    report.non_finite = norm.non_finite.has_value()
                            ? sharded.plan().params[static_cast<std::size_t>(*norm.non_finite)].name
                            : fmt::format("a parameter of stage {}", *norm.bad_stage);
    common_.log.say(LogLevel::warning, precision::skip_report(before, next, report.non_finite));
    common_.diary.saw_non_finite(run.progress.steps,
                                 fmt::format("the summed gradient of {}", report.non_finite));
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
  const double average = common_.scale.gradient_factor();
  if (!look && clipping <= 0) {
    apply(report, average);
    return {};
  }
  GradNorm norm;
  if (with_.gate != nullptr) {
    with_.gate->start(common_.sharded, {average, clipping, look}, {with_.workers});
    if (common_.updater.takes_gate()) {
      apply(report, average, with_.gate->gate());
      return with_.gate->finish(common_.group);
    }
    norm = with_.gate->finish(common_.group);
  } else {
    norm = measure_gradients(common_.sharded, {with_.workers});
  }
  if (look && !norm.finite()) return norm;
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
  scalars.momentum = with_.rates.momentum_after(run.schedule_steps() - 1);
  scalars.gate = gate;
  as_guessed_ = factor == common_.scale.gradient_factor();
  with_.early.decide(scalars);
  common_.updater.update(common_.sharded, scalars);
}

void Step::set_hyper_params(const std::vector<optim::HyperParams>& groups) {
  common_.sharded.settle_updates();  // a late one still reads them
  common_.updater.set_hyper_params(groups);
  with_.rates.base.clear();
  for (const optim::HyperParams& hyper : groups) with_.rates.base.push_back(hyper.lr);
}

std::vector<double> Step::learning_rates() const {
  return with_.rates.after(common_.run.schedule_steps());
}

}  // namespace capstan::engine
