#include "capstan/engine/engine_state.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/rank_env.h"
#include "capstan/engine/emulated_dtype.h"
#include "capstan/engine/join_ranks.h"
#include "capstan/engine/ladder.h"
#include "capstan/engine/make_mesh.h"
#include "capstan/engine/room.h"
#include "capstan/engine/settings.h"
#include "capstan/engine/shared_slices.h"
#include "capstan/engine/tie_stages.h"
#include "capstan/engine/together.h"
#include "capstan/profile/event_clock.h"
#include "capstan/shard/memory.h"

namespace capstan::engine {
namespace {

// A view says itself what is a slice, or the extras do.
void take_slices(shard::ModelView& view, const ModelExtras& extras) {
  for (const StoredAs& each : extras.stored_as) {
    if (!each.slice) continue;
    const auto found = std::ranges::find(view.names, each.in_model);
    if (found == view.names.end()) {
      throw InternalError(
          {.what = fmt::format("'{}' is a slice, but no parameter", each.in_model)});
    }
    view.slices.resize(view.names.size());
    view.slices[static_cast<std::size_t>(found - view.names.begin())] = each.slice;
  }
}

}  // namespace

EngineState::EngineState(const ViewMaker& view, Options given, Parts parts)
    : options(std::move(given)),
      run{.loss_scale = precision::initial_loss_scale(options.precision)},
      extras_(std::move(parts.extras)) {
  check(options, parts.optimizer != nullptr || parts.updater != nullptr);
  shard::ModelView model = view(options);
  take_slices(model, extras_);
  tie_stages(model, parts.ties, options.mesh.pipe);
  join(parts, model.home());
  std::ranges::copy(shared_values(options), std::back_inserter(parts.shared));
  check_agreement(*group_, model.home(), parts.shared);
  shard_model(model);
  make_updater(parts);
  make_rates(parts);
  monitoring_ = std::make_unique<Monitoring>(
      Monitoring::Parts{options, *mesh_, *sharded_,
                        parts.logger != nullptr ? *parts.logger : silence_},
      parts.monitors);
  const Common common{options, *group_,      *mesh_,  *sharded_, *updater_, extras_,
                      *log_,   *monitoring_, *diary_, run,       scale_};
  early_ = std::make_unique<EarlyStep>(common, rates_);
  hooks_ =
      std::make_unique<shard::Hooks>(*sharded_, model, options.precision.cast_inputs, early_.get());
  if (options.profile.find_nan) {
    find_nan_ = std::make_unique<FindNan>(common, model);
    hooks_->set_finite_watcher(find_nan_.get());
  }
  backward_ = std::make_unique<Backward>(common, *hooks_);
  saver_ = std::make_unique<Saver>(common);
  aside_ = std::make_unique<StatesAside>(common, *saver_);
  loader_ = std::make_unique<Loader>(common, *saver_);
  access_ = std::make_unique<Access>(common, *saver_);
  begin_trace();
  step_ = std::make_unique<Step>(common, Step::Helpers{*backward_, *early_, gate_.get(), *saver_,
                                                       rates_, *workers_, trace_.get()});
  log_->say(LogLevel::info,
            describe_run(options, sharded_->plan(), sharded_->settings(), mesh_->mesh()));
  if (group_->rank() == 0) {
    const std::string warning = emulation_warning(options.precision.params, sharded_->device());
    if (!warning.empty()) log_->say(LogLevel::warning, warning);
  }
  if (!options.profile.state_dump.empty()) log_->say(LogLevel::info, options.profile.state_dump);
  log_->begin(profile::index_of(sharded_->device()));
  if (!options.profile.trial.file.empty() && group_->rank() == 0) {
    log_->record_trial({options, group_->size(), sharded_->device()});
  }
}

EngineState::~EngineState() = default;

void EngineState::join(const Parts& parts, c10::Device device) {
  Ranks ranks = parts.group;
  if (ranks.all == nullptr) {
    world_ = join_ranks(device, options, parts.start_nccl);
    ranks = *world_;
  }
  group_ = ranks.all;
  mesh_ =
      std::make_unique<comm::MeshGroups>(make_mesh(options, group_->size()), *group_, ranks.maker);
  Logger& logger = parts.logger != nullptr ? *parts.logger : silence_;
  log_ = std::make_unique<RunLog>(logger, RunLog::Voice{group_->rank() == 0, options.log_level},
                                  options.profile, group_->recorder());
  diary_ = std::make_unique<Diary>(process_env()(kNotesVariable).value_or(""), *mesh_);
}

void EngineState::shard_model(const shard::ModelView& view) {
  const layout::Mesh& mesh = mesh_->mesh();
  shard::Plan plan = make_plan(view, options, mesh);
  if (mesh.size(layout::Axis::tensor) > 1) {
    count_slices_once(plan, mesh_->over(layout::Axis::tensor), view.home());
  }
  shard::Settings settings = shard_settings(options, mesh, state_settings(options));
  settings.out_of_memory_advice = next_saving(
      options, {.ranks = mesh.size(layout::kPeerAxes), .on_gpu = view.home().is_cuda()});
  comm::Group& peers = mesh_->over(layout::kPeerAxes);
  prepare_buffers(view.buffers, options.precision, peers);
  if (options.store.optimizer.auto_ratio && settings.host.used()) {
    const auto room = device_room(view, options.store, peers);
    if (room.has_value()) shard::spill(plan, *room, settings);
  }
  if (settings.host.used()) {
    const store::MemoryUse need = shard::host_forecast(plan, settings);
    const auto room = host_room(*group_, view.home(), need.total());
    together(*group_, view.home(), [&] {
      if (room.has_value()) check_host_memory(need, settings, *room);
    });
  }
  if (view.home().is_cuda()) {
    gate_ = std::make_unique<GradGate>(plan, shard::model_groups(plan, *mesh_), view.home());
  }
  sharded_ =
      std::make_unique<shard::ShardedModel>(std::move(plan), view, *mesh_, settings, gate_.get());
  const std::string why_not = sharded_->places().why_not_pinned();
  if (!why_not.empty()) {
    log_->say(LogLevel::warning,
              fmt::format("host memory is not page-locked, so copies are slower: {}", why_not));
  }
}

void EngineState::make_updater(const Parts& parts) {
  // Beside an update other threads launch forward or backward, or keep the disk busy: they get a
  // core at least. Three quarters of many cores draw as much from memory as all of them (measured).
  const shard::HostSettings& host = sharded_->settings().host;
  const bool beside = host.late_updates || host.early_bytes > 0 || host.homes.optimizer.on_disk();
  const int share = static_cast<int>(options.store.optimizer.core_share * at::get_num_threads());
  const int all = at::get_num_threads();
  const int threads = std::min(share, beside ? std::min(all - 1, (3 * all + 3) / 4) : all);
  workers_ = std::make_unique<optim::WorkerPool>(std::max(1, threads));
  if (parts.updater) {
    updater_ = parts.updater(*sharded_);
  } else if (parts.optimizer) {
    updater_ = make_torch_updater(parts.optimizer, *sharded_);
  } else {
    // check() made sure that there are options.
    updater_ = std::make_unique<KernelUpdater>(options.optimizer.value(), *sharded_, *workers_);
  }
}

void EngineState::begin_trace() {
  if (options.profile.trace.folder.empty()) return;
  const shard::HostSettings& host = sharded_->settings().host;
  const bool stages = options.mesh.pipe > 1;
  trace_ = std::make_unique<StepTrace>(
      options.profile.trace, *group_, *log_,
      StepTrace::Facts{
          .device = sharded_->device(),
          .place = stages ? fmt::format("stage {}", mesh_->place(layout::Axis::pipe)) : "",
          .settings = {
              .stage = options.shard.stage,
              .pipe = options.mesh.pipe,
              .overlaps_reduction = options.shard.overlap_comm,
              .updates_on_host = options.store.optimizer.placement != store::Placement::device,
              .late_updates = host.late_updates,
              .early_updates = host.early_bytes > 0,
              .names = options.names}});
  trace_->step_begins(run.progress.steps);
}

void EngineState::make_rates(const Parts& parts) {
  if (!parts.updater && !parts.optimizer) {
    rates_.base.push_back(options.optimizer.value().hyper.lr);
    for (const optim::Group& group : options.optimizer.value().groups) {
      rates_.base.push_back(group.hyper.lr);
    }
  }
  if (parts.schedule) {
    rates_.schedule.emplace(parts.schedule);
  } else if (options.schedule.has_value()) {
    rates_.schedule.emplace(*options.schedule, rates_.base);
    const std::string warning = schedule::warning(*options.schedule);
    if (!warning.empty()) log_->say(LogLevel::warning, warning);
  }
}

}  // namespace capstan::engine
