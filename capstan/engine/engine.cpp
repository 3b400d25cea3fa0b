#include "capstan/engine/engine.h"

#include <utility>

#include <torch/nn/module.h>

#include "capstan/engine/engine_state.h"
#include "capstan/engine/settings.h"

namespace capstan::engine {

namespace {

// Buffers, and the second names of tied parameters.
Parts with_extras(torch::nn::Module& model, Parts parts) {
  for (const auto& item : model.named_buffers()) {
    if (item.value().defined()) parts.extras.buffers.push_back({item.key(), item.value()});
  }
  std::map<const at::TensorImpl*, std::string> first_name;  // looked up, never iterated
  for (const auto& item : model.named_parameters()) {
    if (!item.value().defined()) continue;
    const auto [at, first] = first_name.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!first) parts.extras.aliases[item.key()] = at->second;
  }
  return parts;
}

}  // namespace

Engine::Engine(std::shared_ptr<torch::nn::Module> model, Options options, Parts parts)
    : model_(std::move(model)),
      state_(std::make_unique<EngineState>(
          [this](const Options& checked) { return shard::view_model(*model_, checked.shard); },
          std::move(options), with_extras(*model_, std::move(parts)))) {}
Engine::Engine(shard::ModelView model, Options options, Parts parts)
    : state_(std::make_unique<EngineState>([&model](const Options&) { return model; },
                                           std::move(options), std::move(parts))) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

void Engine::backward(const at::Tensor& loss, BackwardOptions options) {
  state_->backward().run(loss, options);
}

void Engine::backward(const std::vector<at::Tensor>& outputs,
                      const std::vector<at::Tensor>& gradients, BackwardOptions options) {
  state_->backward().run(outputs, gradients, options);
}

StepReport Engine::step(std::optional<bool> boundary) { return state_->step().take(boundary); }

void Engine::clear_gradients() {
  state_->sharded().clear_gradients();
  state_->monitoring().forget_losses();
}

void Engine::offload_states(const shard::AsideKinds& kinds) { state_->aside().put(kinds); }

void Engine::reload_states() { state_->aside().bring_back(); }

shard::AsideKinds Engine::offloaded_states() const { return state_->aside().kinds(); }

Saved Engine::save_checkpoint(const std::filesystem::path& folder, const SaveOptions& options) {
  return state_->saver().save(folder, options);
}

void Engine::finish_saves() { state_->saver().finish(); }

std::optional<Loaded> Engine::load_checkpoint(const std::filesystem::path& folder,
                                              const LoadOptions& options) {
  return state_->loader().load(folder, options);
}

void Engine::close() {
  finish_saves();
  if (state_->world() != nullptr) state_->world()->close();
}

Engine::NoSync::NoSync(EngineState& state) : state_(state) { state_.backward().change_no_sync(1); }
Engine::NoSync::~NoSync() { state_.backward().change_no_sync(-1); }
Engine::NoSync Engine::no_sync() { return NoSync(*state_); }

Engine::WholeModel::WholeModel(EngineState& state) : state_(state) {
  const int units = static_cast<int>(state_.sharded().plan().units.size());
  for (int unit = 0; unit < units; ++unit) state_.sharded().pin(unit);
}
Engine::WholeModel::~WholeModel() {
  const int units = static_cast<int>(state_.sharded().plan().units.size());
  for (int unit = 0; unit < units; ++unit) state_.sharded().unpin(unit);
}
Engine::WholeModel Engine::whole_parameters() { return WholeModel(*state_); }

at::Tensor Engine::parameter(std::string_view name) {
  Access& access = state_->access();
  return access.param(access.find(name));
}

at::Tensor Engine::master(std::string_view name) {
  Access& access = state_->access();
  return access.read(access.find(name), {shard::Column::master});
}

at::Tensor Engine::gradient(std::string_view name) {
  Access& access = state_->access();
  return access.read(access.find(name), {shard::Column::gradient});
}

at::Tensor Engine::state(std::string_view name, std::string_view which) {
  Access& access = state_->access();
  return access.read(access.find(name), access.state(which));
}

void Engine::set_parameter(std::string_view name, const at::Tensor& value) {
  Access& access = state_->access();
  access.set_param(access.find(name), value);
}

void Engine::set_gradient(std::string_view name, const at::Tensor& value) {
  Access& access = state_->access();
  access.write(access.find(name), {shard::Column::gradient}, value);
}

void Engine::set_state(std::string_view name, std::string_view which, const at::Tensor& value) {
  Access& access = state_->access();
  access.write(access.find(name), access.state(which), value);
}

const Options& Engine::options() const { return state_->options; }
const Progress& Engine::progress() const { return state_->run.progress; }
double Engine::loss_scale() const { return state_->run.loss_scale.scale; }
std::vector<double> Engine::learning_rates() const { return state_->step().learning_rates(); }

store::Ledger& Engine::ledger(store::Placement where) {
  shard::ShardedModel& sharded = state_->sharded();
  switch (where) {
    case store::Placement::host:
      return sharded.places().host_ledger();
    case store::Placement::nvme:
      return sharded.places().disk_ledger();
    default:
      return sharded.places().device_ledger();
  }
}

comm::Group& Engine::group() { return state_->sharded().group(); }
comm::MeshGroups& Engine::mesh() { return state_->mesh(); }

std::string Engine::describe() const {
  const shard::ShardedModel& sharded = state_->sharded();
  return describe_run(options(), sharded.plan(), sharded.settings(), sharded.mesh().mesh());
}

EngineState& Engine::inside() { return *state_; }

}  // namespace capstan::engine
