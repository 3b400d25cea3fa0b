#include "capstan/engine/early_step.h"

#include <utility>

namespace capstan::engine {

EarlyStep::~EarlyStep() { common_.sharded.updates().stop(); }

bool EarlyStep::possible() const {
  return common_.sharded.updates().early() != nullptr && common_.updater.updates_early();
}

// As the step finds them if the gradients are neither clipped nor bad.
UpdateScalars EarlyStep::guess() const {
  const RunState& run = common_.run;
  return {.step = run.optimizer_steps() + 1,
          .grad_factor = common_.scale.gradient_factor(),
          .lr = rates_.after(run.schedule_steps()),
          .momentum = rates_.momentum_after(run.schedule_steps())};
}

void EarlyStep::backward_begins() {
  if (!possible()) return;
  const Options& options = common_.options;
  const bool last = common_.scale.boundary.value_or(common_.run.next_ends_step(options.batch));
  const bool measured = options.store.optimizer.early_updates == store::EarlyUpdates::measured;
  if (!last || (measured && !choice_.early())) return;
  shard::UpdateQueue& early = *common_.sharded.updates().early();
  UpdateScalars now = guess();
  if (early.is_open() && guess_ == now) return;
  early.close(/*keep=*/false);
  guess_ = std::move(now);
  early.open([this](int unit, const shard::UpdateQueue::GoOn& go_on) {
    shard::FreshStates fresh = common_.sharded.updates().make_fresh(unit);
    common_.updater.update_early(common_.sharded, unit, *guess_, fresh, go_on);
    return fresh;
  });
}

void EarlyStep::decide(const UpdateScalars& step) {
  if (guess_.has_value()) common_.sharded.updates().early()->close(/*keep=*/*guess_ == step);
}

void EarlyStep::step_ended(bool as_guessed) {
  if (!possible()) return;
  const auto now = std::chrono::steady_clock::now();
  choice_.step_ended(guess_.has_value(), as_guessed, now - last_step_);
  last_step_ = now;
  guess_.reset();
}

}  // namespace capstan::engine
