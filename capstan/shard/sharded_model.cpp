#include "capstan/shard/sharded_model.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/comm/numbers.h"
#include "capstan/shard/memory.h"

namespace capstan::shard {
namespace {

store::PlacesOptions places_options(const Plan& plan, const Settings& settings, int rank) {
  const auto place = [&](const Home& home, store::MemoryKind kind) {
    store::PlaceOptions options{.placement = home.where(), .pin = home.pin, .disk = {}};
    if (!home.on_disk()) return options;
    options.disk = {.folders = {home.folders.begin(), home.folders.end()},
                    .needed_bytes = disk_forecast(plan, settings)[kind],
                    .label = fmt::format("{} of rank {}", store::to_string(kind), rank),
                    .layout_hash = fingerprint(plan),
                    .direct = kind == store::MemoryKind::optimizer};
    return options;
  };
  return {.states = place(settings.host.homes.optimizer, store::MemoryKind::optimizer),
          .streams = settings.host.streams,
          .params = place(settings.host.homes.params, store::MemoryKind::parameters),
          .read_ahead = settings.host.read_ahead,
          .device_advice = settings.out_of_memory_advice,
          .host_advice = settings.host.out_of_memory_advice};
}

}  // namespace

ShardedModel::ShardedModel(Plan plan, const ModelView& model, comm::MeshGroups& mesh,
                           Settings settings, GradWatcher* watcher)
    : plan_(std::move(plan)),
      settings_(std::move(settings)),
      mesh_(mesh),
      groups_(model_groups(plan_, mesh)),
      device_(model.home()) {
  check_plans_agree();
  check_ties_agree();
  homes_ = choose_homes(plan_, settings_.policy, settings_.host.homes);
  places_ = std::make_unique<store::Places>(
      device_, places_options(plan_, settings_, group().rank()), group().recorder().get());
  const Ground ground{plan_, settings_, groups_, homes_, *places_};
  Adopted adopted = adopt(model, ground, mesh_);
  units_ = std::move(adopted.units);
  updates_ = std::make_unique<Updates>(ground, units_, std::move(adopted.states));
  gradients_ = std::make_unique<Gradients>(ground, *updates_, watcher);
  gatherer_ = std::make_unique<Gatherer>(
      units_, groups_.units, settings_.limits,
      ShardSource{.updates = updates_.get(),
                  .home = &places_->params(settings_.host.homes.params.where()),
                  .traffic = places_->traffic()});
}

ShardedModel::~ShardedModel() {
  if (updates_ != nullptr) updates_->stop();  // they read gradients
}

// Of each set of units with the ranks that share them.
void ShardedModel::check_plans_agree() {
  std::set<layout::Axes> shared = {layout::kPeerAxes};
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

// A sum over stages adds their copies element by element.
void ShardedModel::check_ties_agree() {
  for (int tie = 0; tie < std::ssize(plan_.ties); ++tie) {
    const Tie& shared = plan_.ties[static_cast<std::size_t>(tie)];
    if (!std::ranges::binary_search(shared.stages, groups_.stage)) continue;
    const auto mine = static_cast<std::int64_t>(fingerprint_of_tie(plan_, tie));
    const std::vector<std::int64_t> all =
        comm::from_all_ranks(mesh_.over_stages(shared.stages), device(), mine, "shared weights");
    if (std::ranges::count(all, mine) == std::ssize(all)) continue;
    throw CommError(
        {.what = fmt::format("the stages {} share weights that are not alike",
                             fmt::join(shared.stages, ", ")),
         .where = shared.key,
         .fix = "give their copies the same shapes and dtypes, and freeze all or none"});
  }
}

void ShardedModel::check_same_use(int boundary) {
  const std::vector<std::int64_t> all =
      comm::from_all_ranks(peers(), device(), boundary, "use check");
  for (int rank = 0; rank < groups_.peers.size(); ++rank) {
    if (all[static_cast<std::size_t>(rank)] == boundary) continue;
    throw CommError({.what = fmt::format(
                         "rank {} uses unit #{} of the model while rank {} uses #{}",
                         groups_.peers.rank(), boundary, rank, all[static_cast<std::size_t>(rank)]),
                     .where = fmt::format("group {}", groups_.peers.name()),
                     .fix = fmt::format(
                         "make all ranks call the same modules in the same order, or declare the "
                         "diverging modules one unit ({})",
                         settings_.names("shard.leaf_modules"))});
  }
}

// Of every way in from outside.
void ShardedModel::enter() {
  process_.check("an engine");
  bring_back();
}

void ShardedModel::begin_use(int boundary) {
  enter();
  if (settings_.check_ranks) check_same_use(boundary);
  gatherer_->need(plan_.boundary_units[static_cast<std::size_t>(boundary)]);
}

void ShardedModel::end_use(int boundary) {
  gatherer_->done(plan_.boundary_units[static_cast<std::size_t>(boundary)]);
}

void ShardedModel::pin(int unit) {
  enter();
  gatherer_->pin(unit);
}

void ShardedModel::lend(int unit) {
  enter();
  gatherer_->lend(unit);
}

void ShardedModel::give_back() {
  if (settings_.policy.params != Gather::per_use) return;
  settle_updates();
  if (places_->traffic() != nullptr) places_->traffic()->finish_sends();
  gatherer_->end_pass();
  gatherer_->give_back();
  places_->device().trim();
}

void ShardedModel::begin_backward(bool sync) {
  enter();
  updates_->backward_begins();
  take_back();
  gradients_->begin_backward(sync);
}

void ShardedModel::end_backward() {
  gradients_->end_backward();
  gatherer_->end_pass();
}

void ShardedModel::finish_gradients() {
  enter();
  updates_->settle_late();
  gradients_->finish();
  updates_->finish_sends();  // the step writes the host's parameters
}

void ShardedModel::clear_gradients() {
  if (updates_->early() != nullptr) updates_->early()->close(/*keep=*/false);
  gradients_->clear();
}

void ShardedModel::settle_updates() {
  enter();
  updates_->settle();
}

void ShardedModel::put_aside(const AsideKinds& kinds, const std::vector<at::Tensor>& moments) {
  settle_updates();  // and brings back what is aside
  gatherer_->end_pass();
  if (aside_ == nullptr) aside_ = std::make_unique<PutAside>(*places_);
  aside_->put(kinds, units_, *updates_, gradients_->reducer(), moments);
}

void ShardedModel::bring_back() {
  if (aside_ != nullptr) aside_->bring_back();
}

AsideKinds ShardedModel::aside() const {
  return aside_ != nullptr ? aside_->kinds() : AsideKinds{};
}

}  // namespace capstan::shard
