#include "capstan/engine/engine_state.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include "capstan/base/error.h"
#include "capstan/device/error_text.h"
#include "capstan/engine/emulated_dtype.h"
#include "capstan/engine/join_ranks.h"
#include "capstan/engine/loss.h"
#include "capstan/engine/out_of_memory.h"
#include "capstan/engine/room.h"
#include "capstan/engine/settings.h"
#include "capstan/engine/together.h"
#include "capstan/profile/event_clock.h"
#include "capstan/shard/access.h"
#include "capstan/shard/memory.h"

namespace capstan::engine {

// An error here would leave the other ranks waiting: tell them before it goes on its way. A rank
// that is alone may go on after a backward; a step may have changed half of the states.
template <typename Body>
auto EngineState::guarded(Phase phase, Body&& body) {
  try {
    return body();
  } catch (const CommError&) {
    throw;  // the group knows already
  } catch (const std::exception& error) {
    const char* const name = phase == Phase::step ? "step" : "backward";
    const std::string what = device::error_text(error);
    if (phase == Phase::step || group_->size() > 1) {
      mesh_->abort(fmt::format("rank {} failed in {}: {}", group_->rank(), name, what));
    }
    if (is_out_of_memory(error)) {
      throw OutOfMemory(
          {.what = fmt::format("out of memory in {}: {}", name, what),
           .where = fmt::format("held by the engine: {}",
                                store::to_text(sharded->places().device_ledger().now())),
           .fix = next_saving(options)});
    }
    throw;
  }
}

EngineState::EngineState(const ViewMaker& view, Options given, Parts parts)
    : options(std::move(given)),
      loss_scale(precision::initial_loss_scale(options.precision)),
      extras_(std::move(parts.extras)) {
  check(options, parts.optimizer != nullptr || parts.updater != nullptr);
  const shard::ModelView model = view(options);
  join(parts, model.home());
  std::ranges::copy(shared_values(options), std::back_inserter(parts.shared));
  check_agreement(*group_, model.home(), parts.shared);
  build(model);
  make_updater(parts);
  log_->say(LogLevel::info, describe());
  if (group_->rank() == 0) {
    const std::string warning = emulation_warning(options.precision.params, sharded->device());
    if (!warning.empty()) log_->say(LogLevel::warning, warning);
  }
  if (!options.profile.state_dump.empty()) log_->say(LogLevel::info, options.profile.state_dump);
  log_->begin(profile::index_of(sharded->device()));
}

EngineState::~EngineState() {
  end_save();
  if (sharded != nullptr) sharded->updates().stop();  // they use what goes before it
}

void EngineState::join(const Parts& parts, c10::Device device) {
  group_ = parts.group;
  if (group_ == nullptr) {
    world_ = join_ranks(device, options, parts.start_nccl);
    group_ = &world_->group();
  }
  comm::GroupMaker* const maker = world_ != nullptr ? world_.get() : parts.groups;
  mesh_ =
      std::make_unique<comm::MeshGroups>(make_mesh(options.shard, group_->size()), *group_, maker);
  Logger& logger = parts.logger != nullptr ? *parts.logger : silence_;
  log_ = std::make_unique<RunLog>(logger, RunLog::Voice{group_->rank() == 0, options.log_level},
                                  options.profile, options.batch.train_samples, group_->recorder());
}

void EngineState::build(const shard::ModelView& view) {
  const layout::Mesh& mesh = mesh_->mesh();
  shard::Plan plan = make_plan(view, options, mesh);
  state_settings_ = state_settings(options);
  shard::Settings settings = shard_settings(options, mesh, state_settings_);
  after_sum_ = averaging(options.comm, mesh.size(layout::kDataAxes)).after_sum;
  prepare_buffers(view.buffers, options.precision, *group_);
  if (options.store.optimizer.auto_ratio && settings.host.used()) {
    const auto room = device_room(view, options.store, *group_);
    if (room.has_value()) shard::spill(plan, *room, settings);
  }
  if (settings.host.used()) {
    const auto room = host_room(*group_, view.home());
    together(*group_, view.home(), [&] {
      if (room.has_value()) check_host_memory(plan, settings, *room);
    });
  }
  if (view.home().is_cuda()) {
    gate_ = std::make_unique<GradGate>(plan, shard::model_groups(plan, *mesh_), view.home());
  }
  sharded =
      std::make_unique<shard::ShardedModel>(std::move(plan), view, *mesh_, settings, gate_.get());
  const std::string why_not = sharded->places().why_not_pinned();
  if (!why_not.empty()) {
    log_->say(LogLevel::warning,
              fmt::format("host memory is not page-locked, so copies are slower: {}", why_not));
  }
  hooks_ = std::make_unique<shard::Hooks>(*sharded, view, options.precision.cast_inputs, this);
  change_no_sync(0);
}

void EngineState::make_updater(const Parts& parts) {
  // Beside an update other threads launch forward or backward, or keep the disk busy: they get a
  // core at least. Three quarters of many cores draw as much from memory as all of them (measured).
  const shard::HostSettings& host = sharded->settings().host;
  const bool beside = host.late_updates || host.early_bytes > 0 || host.homes.optimizer.on_disk();
  const int share = static_cast<int>(options.store.optimizer.core_share * at::get_num_threads());
  const int all = at::get_num_threads();
  const int threads = std::min(share, beside ? std::min(all - 1, (3 * all + 3) / 4) : all);
  workers_ = std::make_unique<optim::WorkerPool>(std::max(1, threads));
  if (parts.updater) {
    updater_ = parts.updater(*sharded);
  } else if (parts.optimizer) {
    updater_ = make_torch_updater(parts.optimizer, *sharded);
  } else {
    const optim::Options& optimizer = options.optimizer.value();  // check() made sure
    updater_ = std::make_unique<KernelUpdater>(optimizer, *sharded, *workers_);
    base_lrs_.push_back(optimizer.hyper.lr);
    for (const optim::Group& group : optimizer.groups) base_lrs_.push_back(group.hyper.lr);
  }
  if (parts.schedule) {
    schedule_.emplace(parts.schedule);
  } else if (options.schedule.has_value()) {
    schedule_.emplace(*options.schedule, base_lrs_);
    const std::string warning = schedule::warning(*options.schedule);
    if (!warning.empty()) log_->say(LogLevel::warning, warning);
  }
}

void EngineState::backward(const at::Tensor& loss, const BackwardOptions& how) {
  check_loss(loss, "Engine::backward");
  log_->phase_ended(Phase::forward, sharded->places().device_ledger());
  backward_scale_ = loss_scale.scale;
  boundary_ = how.boundary;
  const double average =
      how.average_accumulation ? 1.0 / static_cast<double>(options.batch.accumulation_steps) : 1.0;
  const precision::LossFactor factor = split_factor(backward_scale_ * average, loss);
  guarded(Phase::backward, [&] {
    hooks_->begin_backward(/*sync=*/no_sync_depth_ == 0, factor.of_gradients);
    try {
      torch::autograd::backward({loss}, {at::full_like(loss, factor.of_loss)}, how.retain_graph);
    } catch (...) {
      hooks_->abandon_backward();
      throw;
    }
    hooks_->end_backward();
  });
  boundary_.reset();
  log_->phase_ended(Phase::backward, sharded->places().device_ledger());
  if (options.shard.log_trace_changes) log_->trace_surprises(sharded->trace().surprises());
}

void EngineState::offload_states(const shard::AsideKinds& kinds) {
  before_change();
  std::vector<at::Tensor> moments;
  for (const StateColumn& column : updater_->state_columns(*sharded)) {
    for (const StateColumn::Part& part : column.parts) {
      if (!sharded->states(part.unit).on_host) moments.push_back(part.values);
    }
  }
  sharded->put_aside(kinds, moments);
}

StepReport EngineState::step(std::optional<bool> boundary) {
  const std::int64_t micro_steps = progress.micro_steps + 1;
  const bool managed = options.batch.managed_accumulation;
  const std::int64_t per_step = options.batch.accumulation_steps;
  const bool counted = !managed || micro_steps % per_step == 0;
  const bool takes_step = boundary.value_or(counted);
  if (takes_step) {
    look_at_gradients();
    before_change();
    // When these throw, nothing has happened here and the group lives.
    shard::take_given(*sharded);
    look_after_save();
  }
  progress.micro_steps = micro_steps;
  if (!takes_step) return {};
  // Whoever names the boundary may have called this for the last of several backwards only.
  progress.micro_steps = (micro_steps + per_step - 1) / per_step * per_step;
  StepReport report = guarded(Phase::step, [this] { return take_step(); });
  if (updates_early()) early_step_ended();
  // Now all states are there, and training has begun.
  if (options.checkpoint.asynchronous && snapshot_memory_ == nullptr) take_memory_ahead();
  log_->phase_ended(Phase::step, sharded->places().device_ledger());
  log_->step_ended(progress, report.lr, sharded->places().device_ledger());
  progress.samples_per_second = log_->samples_per_second();
  return report;
}

StepReport EngineState::take_step() {
  const at::NoGradGuard no_grad;
  StepReport report{.boundary = true, .loss_scale = backward_scale_, .lr = learning_rates()};
  sharded->finish_gradients();
  ++progress.steps;
  progress.samples += options.batch.train_samples;
  const bool look = options.precision.scales_loss() || options.precision.check_grad_overflow;
  guessed_ = false;
  updater_->expect_update(*sharded);
  const GradNorm norm = check_and_apply(report, look);
  report.grad_norm = norm.sum_norm * gradient_factor();
  const bool overflowed = look && norm.non_finite.has_value();
  report.applied = !overflowed;
  const precision::LossScaleState before = loss_scale;
  const auto next = precision::next_loss_scale(options.precision, before, overflowed);
  loss_scale = next.state;
  if (overflowed) {
    ++progress.skipped;
    report.non_finite = sharded->plan().params[static_cast<std::size_t>(*norm.non_finite)].name;
    log_->say(LogLevel::warning, precision::skip_report(before, next, report.non_finite));
    if (precision::stops_run(next.event)) {
      throw ConfigError(precision::stop_error(next, report.non_finite));
    }
  }
  sharded->clear_gradients();
  return report;
}

// On a GPU the update is enqueued behind the check and reads its outcome there; the host learns it
// while the device is still at work.
GradNorm EngineState::check_and_apply(const StepReport& report, bool look) {
  if (!look && options.gradient_clipping <= 0) {
    apply(report, gradient_factor());
    return {};
  }
  GradNorm norm;
  if (gate_ != nullptr) {
    gate_->start(*sharded, {gradient_factor(), options.gradient_clipping, look}, {*workers_});
    if (updater_->takes_gate()) {
      apply(report, gradient_factor(), gate_->gate());
      return gate_->finish(*group_);
    }
    norm = gate_->finish(*group_);
  } else {
    norm = measure_gradients(*sharded, {*workers_});
  }
  if (look && norm.non_finite.has_value()) return norm;
  double factor = gradient_factor();
  if (options.gradient_clipping > 0) {
    // A little above the limit counts as at it, as users of the same key know it.
    const double grad_norm = norm.sum_norm * gradient_factor();
    factor /= std::max(1.0, (grad_norm + 1e-6) / options.gradient_clipping);
  }
  apply(report, factor);
  return norm;
}

void EngineState::apply(const StepReport& report, double factor, const optim::StepGate* gate) {
  UpdateScalars scalars{.step = optimizer_steps(), .grad_factor = factor, .lr = report.lr};
  scalars.gate = gate;
  if (schedule_.has_value()) scalars.momentum = schedule_->at(schedule_steps() - 1, 0).momentum;
  guessed_ = factor == gradient_factor();
  if (guess_.has_value()) sharded->updates().early()->close(/*keep=*/*guess_ == scalars);
  updater_->update(*sharded, scalars);
}

// As apply() finds them if the gradients are neither clipped nor bad.
UpdateScalars EngineState::guess_step() const {
  UpdateScalars scalars{
      .step = optimizer_steps() + 1, .grad_factor = gradient_factor(), .lr = learning_rates()};
  if (schedule_.has_value()) scalars.momentum = schedule_->at(schedule_steps(), 0).momentum;
  return scalars;
}

bool EngineState::updates_early() const {
  return sharded->updates().early() != nullptr && updater_->updates_early();
}

void EngineState::backward_begins() {
  if (!updates_early()) return;
  const bool managed = options.batch.managed_accumulation;
  const bool counted =
      !managed || (progress.micro_steps + 1) % options.batch.accumulation_steps == 0;
  const bool measured = options.store.optimizer.early_updates == store::EarlyUpdates::measured;
  if (!boundary_.value_or(counted) || (measured && !early_choice_.early())) return;
  UpdateScalars guess = guess_step();
  shard::UpdateQueue& early = *sharded->updates().early();
  if (early.is_open() && guess_ == guess) return;
  early.close(/*keep=*/false);
  guess_ = std::move(guess);
  early.open([this](int unit, const shard::UpdateQueue::GoOn& go_on) {
    shard::FreshStates fresh = sharded->updates().make_fresh(unit);
    updater_->update_early(*sharded, unit, *guess_, fresh, go_on);
    return fresh;
  });
}

void EngineState::early_step_ended() {
  const auto now = std::chrono::steady_clock::now();
  early_choice_.step_ended(guess_.has_value(), guessed_, now - last_step_);
  last_step_ = now;
  guess_.reset();
}

void EngineState::set_hyper_params(const std::vector<optim::HyperParams>& groups) {
  sharded->settle_updates();  // a late one still reads them
  updater_->set_hyper_params(groups);
  base_lrs_.clear();
  for (const optim::HyperParams& hyper : groups) base_lrs_.push_back(hyper.lr);
}

std::vector<double> EngineState::learning_rates() const {
  if (!schedule_.has_value()) return base_lrs_;
  std::vector<double> rates;
  const std::size_t groups = std::max<std::size_t>(1, base_lrs_.size());
  rates.reserve(groups);
  for (std::size_t g = 0; g < groups; ++g) {
    rates.push_back(schedule_->at(schedule_steps(), static_cast<int>(g)).lr);
  }
  return rates;
}

int EngineState::moment_index(std::string_view which) const {
  const auto& names = state_settings_.moment_names;
  const auto found = std::find(names.begin(), names.end(), which);
  if (found != names.end()) return static_cast<int>(found - names.begin());
  throw ConfigError({.what = fmt::format("the optimizer has no state '{}'", which),
                     .where = "Engine::state",
                     .fix = names.empty() ? "it keeps none"
                                          : fmt::format("use one of: {}", fmt::join(names, ", "))});
}

std::string EngineState::describe() const {
  return describe_run(options, sharded->plan(), sharded->settings(), mesh_->mesh());
}

}  // namespace capstan::engine
