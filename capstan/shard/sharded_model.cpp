#include "capstan/shard/sharded_model.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/comm/numbers.h"
#include "capstan/shard/loose_shard.h"
#include "capstan/shard/memory.h"

namespace capstan::shard {
namespace {

std::span<const std::byte> span_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

ShardedModel::ShardedModel(Plan plan, const ModelView& model, comm::MeshGroups& mesh,
                           Settings settings)
    : plan_(std::move(plan)),
      settings_(std::move(settings)),
      mesh_(mesh),
      groups_(model_groups(plan_, mesh)),
      pool_(model.home(), ledger_, settings_.out_of_memory_advice) {
  check_plans_agree();
  homes_ = choose_homes(plan_, settings_.policy, settings_.host.homes);
  if (settings_.host.used()) {
    // Page-locked memory serves copies to another device; there are none for a model on the CPU.
    const HostSettings& host = settings_.host;
    const auto make_pool = [&](bool pin) {
      return store::Pool::of_host(host_ledger_, host.out_of_memory_advice,
                                  pin && !pool_.device().is_cpu());
    };
    host_pool_ = make_pool(host.pins_states());
    if (host.homes.params.pin != host.pins_states()) shard_pool_ = make_pool(host.homes.params.pin);
    traffic_ = std::make_unique<HostTraffic>(pool_.device(), group().recorder().get());
    std::vector<bool> leave;
    for (const UnitHomes& unit : homes_) {
      leave.push_back(unit.gradients() != store::Placement::device);
    }
    host_grads_ = std::make_unique<HostGrads>(std::move(leave), settings_.reduce.accum, *traffic_,
                                              *host_pool_);
  }
  open_swap_files();
  adopt(model);
  if (settings_.host.late_updates) {
    late_traffic_ = std::make_unique<HostTraffic>(pool_.device(), group().recorder().get());
    late_ = std::make_unique<LateUpdates>(static_cast<int>(plan_.units.size()));
  }
  if (host_grads_ != nullptr && settings_.host.early_bytes > 0) {
    early_ =
        std::make_unique<EarlyUpdates>(early_units(plan_, settings_), *host_pool_, pool_.device());
    early_->prepare(states_);
    host_grads_->before_change = [this](int unit) { early_->forget(unit); };
    host_grads_->on_ready = [this](int unit, HostTraffic::Ahead arrival) {
      early_->ready(unit, states(unit), std::move(arrival));
    };
  }
  gatherer_ = std::make_unique<Gatherer>(units_, groups_.units, settings_.limits, traffic_.get());
  gatherer_->before_gather = [this](int unit) { await_update(unit); };
  if (reader_ != nullptr) {
    gatherer_->bring = [this](int unit) {
      const at::Tensor& shard = units_[static_cast<std::size_t>(unit)].shard();
      return tensor_over(reader_->take(span_of(shard)), shard.numel(), shard.options());
    };
  }
  reducer_ = std::make_unique<Reducer>(plan_, groups_, pool_, settings_.reduce, host_grads_.get());
}

std::string ShardedModel::why_not_pinned() const {
  for (const auto* pool : {&host_pool_, &shard_pool_}) {
    if (*pool != nullptr && !(*pool)->why_not_pinned().empty()) return (*pool)->why_not_pinned();
  }
  return "";
}

void ShardedModel::open_swap_files() {
  const auto open = [this](const Home& home, store::MemoryKind kind) {
    return std::make_unique<store::SwapFiles>(store::SwapOptions{
        .folders = {home.folders.begin(), home.folders.end()},
        .needed_bytes = disk_forecast(plan_, settings_)[kind],
        .label = fmt::format("{} of rank {}", store::to_string(kind), groups_.all.rank()),
        .layout_hash = fingerprint(plan_),
        .direct = kind == store::MemoryKind::optimizer});
  };
  if (settings_.host.homes.optimizer.on_disk()) {
    swap_files_ = open(settings_.host.homes.optimizer, store::MemoryKind::optimizer);
    swap_pool_ = store::Pool::of_disk(disk_ledger_, *swap_files_);
  }
  if (settings_.host.homes.params.on_disk()) {
    param_files_ = open(settings_.host.homes.params, store::MemoryKind::parameters);
    param_pool_ = store::Pool::of_disk(disk_ledger_, *param_files_);
    store::Pool& host = shard_pool_ != nullptr ? *shard_pool_ : *host_pool_;
    reader_ = std::make_unique<store::SwapReader>(*param_files_, host, settings_.host.read_ahead,
                                                  group().recorder().get());
  }
}

StatesHome ShardedModel::states_home(int unit) {
  const auto [params, states] = homes(unit);
  store::Pool& pool = states == store::Placement::device ? pool_
                      : states == store::Placement::host ? *host_pool_
                                                         : *swap_pool_;
  const bool one_copy = states == params && states != store::Placement::nvme;
  return {pool, updates_on_host(unit), one_copy};
}

// Of each set of units with the ranks that share them.
void ShardedModel::check_plans_agree() {
  std::set<layout::Axes> shared = {UnitAxes{}.all()};
  for (const UnitSpec& unit : plan_.units) shared.insert(unit.axes.all());
  for (const layout::Axes axes : shared) {
    const auto mine = static_cast<std::int64_t>(fingerprint(plan_, axes));
    const std::vector<std::int64_t> all =
        comm::from_all_ranks(mesh_.over(axes), device(), mine, "plan");
    const auto other = std::ranges::find_if(all, [mine](std::int64_t its) { return its != mine; });
    if (other == all.end()) continue;
    const std::vector<int> ranks = mesh_.mesh().group(axes, group().rank());
    throw CommError({.what = fmt::format("ranks {} and {} hold different models", group().rank(),
                                         ranks[static_cast<std::size_t>(other - all.begin())]),
                     .where = fmt::format("group {}, plan of {}", mesh_.over(axes).name(),
                                          counted(std::ssize(plan_.params), "parameter")),
                     .fix = "build the same model with the same options on every rank: names, "
                            "shapes, dtypes and frozen parameters must agree"});
  }
}

void ShardedModel::check_same_use(int boundary) {
  const std::vector<std::int64_t> all =
      comm::from_all_ranks(group(), device(), boundary, "use check");
  for (int rank = 0; rank < groups_.all.size(); ++rank) {
    if (all[static_cast<std::size_t>(rank)] == boundary) continue;
    throw CommError({.what = fmt::format(
                         "rank {} uses unit #{} of the model while rank {} uses #{}",
                         groups_.all.rank(), boundary, rank, all[static_cast<std::size_t>(rank)]),
                     .where = fmt::format("group {}", groups_.all.name()),
                     .fix = fmt::format(
                         "make all ranks call the same modules in the same order, or declare the "
                         "diverging modules one unit ({})",
                         settings_.names("shard.leaf_modules"))});
  }
}

at::Tensor ShardedModel::whole_param(const ModelView& model, int index) {
  const auto i = static_cast<std::size_t>(index);
  at::Tensor param = model.params[i];
  if (model.is_loose(i)) {
    model.loose[i]->pin();  // the values of all ranks, equal already
    model.loose[i]->hand_over();
    if (param.device() != pool_.device()) param.set_data(param.detach().to(pool_.device()));
    return param;
  }
  const bool constant = constants_agree_ && model.is_constant(i);
  if (!constant && !param.is_contiguous()) param.set_data(param.detach().contiguous());
  const at::Tensor values = param.detach().view(-1);
  if (param.numel() == 0) return param;
  groups_.all.broadcast(constant ? values.narrow(0, 0, 1) : values, 0, "initial values").wait();
  return param;
}

Unit ShardedModel::adopt_unit(const ModelView& model, int index) {
  const auto i = static_cast<std::size_t>(index);
  const UnitSpec& spec = plan_.units[i];
  const bool sharded = settings_.policy.shards_optimizer();
  std::vector<at::Tensor> members;
  members.reserve(spec.params.size());
  for (const int param : spec.params) members.push_back(whole_param(model, param));
  const bool keep_whole = spec.resident || settings_.policy.params != Gather::per_use;
  if (spec.trainable) {
    states_[i] = make_states(spec, members, owned_elems(spec, sharded, groups(index).cut->rank()),
                             settings_.states, states_home(index));
  }
  const auto& on_host = shard_pool_ != nullptr ? shard_pool_ : host_pool_;
  const auto& shards = param_pool_ != nullptr ? param_pool_ : on_host;
  Unit unit(spec, plan_.params, std::move(members), pool_,
            UnitRole{.rank = groups(index).cut->rank(),
                     .keep_whole = keep_whole,
                     .near_rank = mesh_.place(spec.axes.near),
                     .shard_home =
                         homes(index).params == store::Placement::device ? nullptr : shards.get()});
  if (!keep_whole) {
    unit.keep_near();
    unit.release();
  }
  if (spec.trainable) bind_params(states_[i], unit, sharded);
  for (const auto* files : {&swap_files_, &param_files_}) {
    // No more than a unit's pages in host memory at a time.
    if (*files != nullptr) (*files)->write_back(store::SwapFiles::Which::taken_since);
  }
  return unit;
}

// The last first: what goes to the host makes room for what stays, so that the start never needs
// more than its end and one unit.
void ShardedModel::adopt(const ModelView& model) {
  states_.resize(plan_.units.size());
  const std::vector<std::int64_t> constants =
      comm::from_all_ranks(group(), device(), model.constants(), "constants");
  constants_agree_ =
      std::ranges::adjacent_find(constants, std::not_equal_to<>()) == constants.end();
  for (int i = static_cast<int>(plan_.units.size()) - 1; i >= 0; --i) {
    units_.push_back(adopt_unit(model, i));
  }
  std::reverse(units_.begin(), units_.end());
  for (std::size_t i = 0; i < plan_.units.size(); ++i) {
    if (plan_.units[i].trainable) step_order_.push_back(static_cast<int>(i));
  }
}

// Of every way in from outside.
void ShardedModel::enter() {
  process_.check("an engine");
  if (before_use) before_use();
}

void ShardedModel::begin_use(int boundary) {
  enter();
  if (settings_.check_ranks) check_same_use(boundary);
  for (const int unit : plan_.boundary_units[static_cast<std::size_t>(boundary)])
    await_update(unit);
  gatherer_->need(plan_.boundary_units[static_cast<std::size_t>(boundary)]);
  if (reader_ != nullptr) read_shards_ahead();
}

void ShardedModel::read_shards_ahead() {
  for (const int index : gatherer_->trace().upcoming()) {
    const Unit& unit = units_[static_cast<std::size_t>(index)];
    if (unit.state() != UnitState::sharded || !unit.shard_on_host()) continue;
    if (!reader_->read_ahead(span_of(unit.shard()))) return;
  }
}

void ShardedModel::end_use(int boundary) {
  gatherer_->done(plan_.boundary_units[static_cast<std::size_t>(boundary)]);
}

void ShardedModel::begin_backward(bool sync) {
  enter();
  settle_late();  // the gradients' homes are read until then
  if (late_traffic_ != nullptr) late_traffic_->drop_ended_sends();
  take_back();
  if (sync && before_backward) before_backward();
  reducer_->begin_backward(sync);
}

void ShardedModel::pin(int unit) {
  enter();
  await_update(unit);
  gatherer_->pin(unit);
}

void ShardedModel::lend(int unit) {
  enter();
  await_update(unit);
  gatherer_->lend(unit);
}

bool ShardedModel::can_update_late(int unit) const {
  if (late_ == nullptr || !updates_on_host(unit)) return false;
  if (reader_ != nullptr) return false;  // what is read ahead must be up to date
  const bool resident = plan_.units[static_cast<std::size_t>(unit)].resident;
  // Between several ranks only what is gathered at its next use: all else is published at once.
  const bool released = units_[static_cast<std::size_t>(unit)].state() == UnitState::sharded;
  return !resident && (groups(unit).cut->size() == 1 || released);
}

void ShardedModel::update_late(std::vector<int> units, std::function<void(int unit)> update) {
  late_traffic_->follow_current();
  late_->start(std::move(units), [this, update = std::move(update)](int unit) {
    const c10::OptionalDeviceGuard on_our_device(pool_.device());
    const c10::NoGradGuard no_grad;
    updating_late_ = true;
    late_arrival_ = {};
    update(unit);
    updating_late_ = false;
    return late_arrival_;
  });
}

void ShardedModel::await_update(int unit) {
  if (late_ == nullptr) return;
  profile::Span waiting(group().recorder().get(), {"update", unit_name(unit), profile::Kind::wait});
  const HostTraffic::Ahead arrival = late_->wait(unit);
  if (arrival.arrived != nullptr) late_traffic_->await(arrival);
}

void ShardedModel::settle_updates() {
  enter();
  settle_late();
  if (settle_states) settle_states();
  if (early_ != nullptr) early_->close(/*keep=*/false);  // the caller may change what it reads
}

void ShardedModel::stop_updates() noexcept {
  try {
    settle_late();  // whole parameters outlive us
    // Nobody is left who could be told.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
  }
  late_.reset();
  early_.reset();
}

void ShardedModel::settle_late() {
  if (late_ == nullptr || late_->idle()) return;
  late_->wait_all();
  for (const int unit : step_order_) await_update(unit);
}

void ShardedModel::grad_arrived(int param, const at::Tensor& grad) {
  reducer_->arrived(param, grad);
}

void ShardedModel::end_backward() {
  reducer_->end_backward();
  end_pass();
}

void ShardedModel::end_pass() {
  gatherer_->end_pass();
  if (reader_ != nullptr) reader_->forget();  // an update may follow
}

void ShardedModel::give_back() {
  if (settings_.policy.params != Gather::per_use) return;
  settle_updates();
  if (traffic_ != nullptr) traffic_->finish_sends();
  end_pass();
  gatherer_->give_back();
  pool_.trim();
}

void ShardedModel::finish_gradients() {
  enter();
  settle_late();
  if (settings_.unused == UnusedParameters::error) {
    const std::vector<int> unused = reducer_->unused_params();
    if (!unused.empty()) {
      std::vector<std::string> names;
      names.reserve(unused.size());
      for (const int index : unused) {
        names.push_back(plan_.params[static_cast<std::size_t>(index)].name);
      }
      throw ConfigError(
          {.what = fmt::format("{} got no gradient: {}",
                               counted(std::ssize(names), "trainable parameter"),
                               fmt::join(names, ", ")),
           .where = fmt::format("step on rank {}", groups_.all.rank()),
           .fix = fmt::format("freeze them (requires_grad = false), use them in the loss, or allow "
                              "unused parameters ({})",
                              settings_.names("shard.unused_parameters"))});
    }
  }
  reducer_->finish();
  if (traffic_ == nullptr) return;
  host_grads_->finish();
  traffic_->finish_sends();  // the step writes the host's parameters
  if (late_traffic_ != nullptr) late_traffic_->finish_sends();
}

const at::Tensor& ShardedModel::gradient_shard(int unit) const {
  if (updates_on_host(unit)) return host_grads_->sum(unit);
  return reducer_->sum(unit);
}

void ShardedModel::clear_gradients() {
  if (early_ != nullptr) early_->close(/*keep=*/false);
  reducer_->clear();
  if (host_grads_ != nullptr) host_grads_->clear();
}

}  // namespace capstan::shard
