#include "capstan/shard/hooks.h"

#include <algorithm>
#include <exception>
#include <set>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include "capstan/base/error.h"
#include "capstan/profile/event_clock.h"
#include "capstan/shard/choose_units.h"
#include "capstan/shard/sharded_model.h"
#include "capstan/shard/torch_dtype.h"

namespace capstan::shard {
namespace {

bool inside_autograd() { return torch::autograd::get_current_graph_task_id() != -1; }

bool needs_hook(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

bool is_finite(const at::Tensor* tensor) {
  if (!tensor->defined() || !tensor->is_floating_point()) return true;
  return at::isfinite(tensor->detach()).all().item<bool>();
}

std::vector<nn::NamedUnit> chosen_units(torch::nn::Module& model, const Options& options) {
  const std::vector<nn::NamedUnit> units = nn::find_units(model);
  std::vector<UnitCandidate> candidates;
  for (const nn::NamedUnit& unit : units) {
    std::int64_t elems = 0;
    for (const at::Tensor& param : unit.unit->module().parameters()) elems += param.numel();
    candidates.push_back({unit.name, unit.unit->module().name(), elems});
  }
  const std::vector<bool> chosen = choose_units(candidates, options);
  std::vector<nn::NamedUnit> result;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (chosen[i]) result.push_back(units[i]);
  }
  return result;
}

// Of the subtree, but not of units inside it: a parameter belongs to the innermost.
std::vector<int> params_below(const torch::nn::Module& root,
                              const std::unordered_set<const torch::nn::Module*>& is_unit,
                              const std::unordered_map<const at::TensorImpl*, int>& index_of) {
  std::set<int> params;
  std::vector<const torch::nn::Module*> todo = {&root};
  while (!todo.empty()) {
    const torch::nn::Module* const module = todo.back();
    todo.pop_back();
    for (const auto& item : module->named_parameters(/*recurse=*/false)) {
      if (item.value().defined()) params.insert(index_of.at(item.value().unsafeGetTensorImpl()));
    }
    for (const auto& child : module->children()) {
      if (!is_unit.contains(child.get())) todo.push_back(child.get());
    }
  }
  return {params.begin(), params.end()};
}

}  // namespace

ModelView view_model(torch::nn::Module& model, const Options& options) {
  ModelView view;
  std::unordered_map<const at::TensorImpl*, int> index_of;
  for (const auto& item : model.named_parameters()) {
    if (!item.value().defined()) continue;
    const int next = static_cast<int>(view.params.size());
    if (!index_of.emplace(item.value().unsafeGetTensorImpl(), next).second) continue;
    view.names.push_back(item.key());
    view.sizes.push_back(item.value().sizes().vec());
    view.params.push_back(item.value());
  }
  for (const at::Tensor& buffer : model.buffers()) {
    if (buffer.defined()) view.buffers.push_back(buffer);
  }
  std::unordered_set<const torch::nn::Module*> is_unit;
  for (const nn::NamedUnit& unit : chosen_units(model, options)) {
    is_unit.insert(&unit.unit->module());
    view.boundaries.push_back({.name = unit.name, .params = {}});
    view.units.push_back(unit.unit);
  }
  for (std::size_t i = 0; i < view.units.size(); ++i) {
    view.boundaries[i].params = params_below(view.units[i]->module(), is_unit, index_of);
  }
  return view;
}

struct Hooks::GradHook final : torch::autograd::FunctionPostHook {
  GradHook(Hooks& hooks, int param) : hooks(hooks), param(param) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    hooks.grad_arrived(param);
    return outputs;
  }
  Hooks& hooks;  // removes this hook before it goes
  int param;
};

// Lives in the callback that ends a foreign backward. Autograd drops that unused when one throws.
struct Hooks::ForeignScope {
  explicit ForeignScope(Hooks& hooks) : hooks(hooks), alive(hooks.alive_) {}
  ForeignScope(const ForeignScope&) = delete;
  ForeignScope& operator=(const ForeignScope&) = delete;
  ~ForeignScope() {
    if (!ended && !alive.expired()) hooks.abandon_backward();
  }
  void end() {
    ended = true;
    if (!alive.expired()) hooks.end_backward();
  }
  Hooks& hooks;
  std::weak_ptr<Alive> alive;
  bool ended = false;
};

Hooks::Hooks(ShardedModel& core, const ModelView& view, bool cast_inputs, BackwardWatcher* watcher)
    : core_(core),
      watcher_(watcher),
      params_(view.params),
      units_(view.units),
      accumulators_(view.params.size()),
      cast_inputs_(cast_inputs) {
  const Plan& plan = core.plan();
  for (const BoundarySpec& boundary : view.boundaries) names_.push_back(boundary.name);
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!plan.params[i].trainable) continue;
    // An accumulator remembers the shape it was made with: the unit must be whole here.
    const int unit = plan.places[i].unit;
    core.pin(unit);
    watch(static_cast<int>(i));
    core.unpin(unit);
  }
  for (std::size_t i = 0; i < units_.size(); ++i) {
    boundary_of_.emplace(units_[i], static_cast<int>(i));
    units_[i]->set_observer(*this);
  }
}

void Hooks::watch(int param) {
  auto& [accumulator, key] = accumulators_[static_cast<std::size_t>(param)];
  if (accumulator != nullptr) accumulator->del_post_hook(key);
  accumulator = torch::autograd::impl::grad_accumulator(params_[static_cast<std::size_t>(param)]);
  key = accumulator->add_post_hook(std::make_unique<GradHook>(*this, param));
}

// A parameter that was converted or moved and came back has another accumulator since.
void Hooks::watch_renewed() {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (accumulators_[i].first == nullptr) continue;
    const auto current = torch::autograd::impl::try_get_grad_accumulator(params_[i]);
    if (current != nullptr && current != accumulators_[i].first) watch(static_cast<int>(i));
  }
}

Hooks::~Hooks() {
  for (const auto& [accumulator, key] : accumulators_) {
    if (accumulator != nullptr) accumulator->del_post_hook(key);
  }
  for (nn::UnitBase* const unit : units_) unit->clear_observer(*this);
}

void Hooks::before_forward(nn::UnitBase& unit, std::span<at::Tensor* const> inputs) {
  begin_forward(boundary_of_.at(&unit), inputs);
}

void Hooks::after_forward(nn::UnitBase& /*unit*/, std::span<at::Tensor* const> outputs) {
  end_forward(outputs);
}

void Hooks::abandon_forward(nn::UnitBase& /*unit*/) noexcept { drop_forward(); }

bool Hooks::gathers(int boundary) const {
  return std::ranges::any_of(core_.plan().boundary_units[static_cast<std::size_t>(boundary)],
                             [this](int unit) { return !core_.unit(unit).keeps_whole(); });
}

// Everything or, when it throws, nothing: callers end a use also where its beginning has failed.
void Hooks::begin_use(Use& use) {
  core_.begin_use(use.boundary);
  std::size_t pinned = 0;
  try {
    for (; pinned < use.others.size(); ++pinned) core_.pin(use.others[pinned]);
  } catch (...) {
    while (pinned > 0) core_.unpin(use.others[--pinned]);
    core_.end_use(use.boundary);
    throw;
  }
  use.begun = true;
}

void Hooks::end_use(Use& use) {
  if (!std::exchange(use.begun, false)) return;
  for (const int unit : use.others) core_.unpin(unit);
  core_.end_use(use.boundary);
}

profile::Span Hooks::span_of(const Use& use, std::string_view name) const {
  return {core_.group().recorder().get(),
          {.name = name,
           .unit = names_[static_cast<std::size_t>(use.boundary)],
           .device = profile::index_of(core_.device())}};
}

void Hooks::begin_forward(int boundary, std::span<at::Tensor* const> inputs) {
  auto use = std::make_shared<Use>(Use{.boundary = boundary, .gathers = gathers(boundary)});
  open_forwards_.push_back(use);
  begin_use(*use);
  use->span = span_of(*use, inside_autograd() ? "recompute" : "forward");
  if (cast_inputs_) cast(inputs);
  if (at::GradMode::is_enabled()) hook_inputs(use, inputs);
}

void Hooks::end_forward(std::span<at::Tensor* const> outputs) {
  const std::shared_ptr<Use> use = std::move(open_forwards_.back());
  open_forwards_.pop_back();
  use->span.end();
  const bool recorded = at::GradMode::is_enabled();
  if (finite_ != nullptr && !std::ranges::all_of(outputs, is_finite)) {
    finite_->output_not_finite(use->boundary);
  }
  if (recorded) hook_outputs(use, outputs);
  if (recorded && inside_autograd()) {
    // A recomputation: its backward follows at once, so the unit stays whole for it.
    use->whole = true;
    open_backwards_.push_back(use);
    return;
  }
  end_use(*use);
}

void Hooks::drop_forward() noexcept {
  const std::shared_ptr<Use> use = std::move(open_forwards_.back());
  open_forwards_.pop_back();
  use->span.end();
  if (at::GradMode::is_enabled() && inside_autograd()) {
    // A recomputation may stop by an exception as soon as it has what backward needs.
    use->whole = true;
    open_backwards_.push_back(use);
    return;
  }
  try {
    end_use(*use);
    // The error that is on its way already tells what went wrong.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
  }
}

bool Hooks::also_uses(int param) {
  if (open_forwards_.empty()) return false;
  const int unit = core_.plan().places[static_cast<std::size_t>(param)].unit;
  core_.pin(unit);
  open_forwards_.back()->others.push_back(unit);
  return true;
}

void Hooks::cast(std::span<at::Tensor* const> inputs) const {
  if (params_.empty()) return;
  for (at::Tensor* const input : inputs) {
    if (input->defined() && input->is_floating_point()) {
      *input = input->to(torch_dtype(core_.plan().params.front().dtype));
    }
  }
}

void Hooks::hook_inputs(const std::shared_ptr<Use>& use, std::span<at::Tensor* const> inputs) {
  for (at::Tensor* const input : inputs) {
    if (!needs_hook(*input)) continue;
    // A node of our own at the unit's entry: autograd runs it after every node of the unit, since
    // those were made later and it takes the youngest ready node first.
    *input = input->view_as(*input);
    input->register_hook([this, use, alive = std::weak_ptr<Alive>(alive_)](const at::Tensor&) {
      if (!alive.expired()) leave_backward(*use);
    });
  }
}

void Hooks::hook_outputs(const std::shared_ptr<Use>& use, std::span<at::Tensor* const> outputs) {
  for (at::Tensor* const output : outputs) {
    if (!needs_hook(*output)) continue;
    output->register_hook([this, use, alive = std::weak_ptr<Alive>(alive_)](const at::Tensor&) {
      if (!alive.expired()) {
        enter_backward(use);
      } else if (use->gathers) {
        throw ConfigError(
            {.what = "the engine that this forward ran under is gone, and with it the parameters "
                     "that its backward needs",
             .where = "backward",
             .fix = "keep the engine until backward has run, or run the forward again under the "
                    "next one"});
      }
    });
  }
}

void Hooks::enter_backward(const std::shared_ptr<Use>& use) {
  if (!in_backward_) take_up_foreign_backward();
  if (!use->whole) {
    begin_use(*use);
    use->whole = true;
    open_backwards_.push_back(use);
  }
  if (!use->span.open()) use->span = span_of(*use, "backward");
}

void Hooks::leave_backward(Use& use) {
  if (!use.whole) return;
  use.whole = false;
  use.span.end();
  end_use(use);
}

void Hooks::grad_arrived(int param) {
  if (!in_backward_) take_up_foreign_backward();
  const at::NoGradGuard no_grad;
  at::Tensor& grad = params_[static_cast<std::size_t>(param)].mutable_grad();
  if (!grad.defined()) return;
  const int graph = torch::autograd::get_current_graph_task_id();
  if (graph_.value_or(graph) != graph) core_.gradients().reducer().saw_several_graphs();
  graph_ = graph;
  if (grad_factor_ != 1) grad.mul_(grad_factor_);
  if (finite_ != nullptr && !is_finite(&grad)) finite_->gradient_not_finite(param);
  core_.grad_arrived(param, grad);
  grad.reset();
}

std::vector<int> Hooks::given_gradients() const {
  std::vector<int> given;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (accumulators_[i].first != nullptr && params_[i].grad().defined()) {
      given.push_back(static_cast<int>(i));
    }
  }
  return given;
}

void Hooks::take_gradients(const std::vector<int>& params) {
  for (const int param : params) grad_arrived(param);
}

// The callback belongs to the innermost backward that runs: inside a recomputation that is one
// block's, and each block then counts as a backward of its own: more reductions, the same sums.
void Hooks::take_up_foreign_backward() {
  if (!foreign_.refusal.empty()) {
    throw ConfigError({.what = "a backward reached the model outside of engine.backward()",
                       .where = "loss.backward()",
                       .fix = foreign_.refusal});
  }
  begin_backward(foreign_.sync, foreign_.grad_factor);
  torch::autograd::Engine::get_default_engine().queue_callback(
      [scope = std::make_shared<ForeignScope>(*this)] { scope->end(); });
}

void Hooks::begin_backward(bool sync, double grad_factor) {
  watch_renewed();
  in_backward_ = true;
  grad_factor_ = grad_factor;
  graph_.reset();
  core_.begin_backward(sync);
  if (sync && watcher_ != nullptr) watcher_->backward_begins();
}

void Hooks::leave_uses() {
  in_backward_ = false;
  for (const std::shared_ptr<Use>& use : open_backwards_) leave_backward(*use);
  open_backwards_.clear();
}

bool Hooks::all_accumulators(const std::function<bool(torch::autograd::Node*)>& holds) const {
  return std::ranges::all_of(accumulators_, [&](const auto& each) {
    return each.first == nullptr || holds(each.first.get());
  });
}

void Hooks::end_backward() {
  leave_uses();
  core_.end_backward();
}

void Hooks::abandon_backward() noexcept {
  try {
    leave_uses();
    core_.end_pass();
    // The error that is on its way already tells what went wrong.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
  }
}

}  // namespace capstan::shard
