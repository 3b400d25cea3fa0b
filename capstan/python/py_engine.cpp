#include "capstan/python/py_engine.h"

#include <utility>

#include "capstan/base/error.h"
#include "capstan/config/shared_values.h"
#include "capstan/engine/forward_only.h"
#include "capstan/python/py_monitors.h"
#include "capstan/python/py_optimizer.h"
#include "capstan/python/py_values.h"
#include "capstan/shard/hooks.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

std::optional<DType> dtype_named(const std::string& text) {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    if (name(dtype) == text) return dtype;
  }
  return std::nullopt;
}

shard::ModelView view_of(const PyModel& model, const shard::Options& options) {
  shard::ModelView view{.names = model.names,
                        .params = model.params,
                        .buffers = model.buffers,
                        .loose = model.loose,
                        .device = model.device};
  std::vector<std::int64_t> elems;
  for (std::size_t i = 0; i < model.params.size(); ++i) {
    view.sizes.push_back(view.is_loose(i) ? model.loose[i]->sizes()
                                          : model.params[i].sizes().vec());
    elems.push_back(c10::multiply_integers(view.sizes.back()));
  }
  for (const std::string& text : model.travel) view.travel.push_back(dtype_named(text));
  std::vector<shard::ModuleNode> tree;
  tree.reserve(model.tree.size());
  for (const auto& [name, class_name, parent, is_list, is_called, params] : model.tree) {
    tree.push_back({name, class_name, parent, is_list, is_called, params});
  }
  view.boundaries = shard::find_boundaries(tree, elems, options);
  return view;
}

// Shared, as the mesh's own groups are not: what is left of a model outlives its engine.
std::shared_ptr<comm::Group> peers_of(const layout::Mesh& mesh, const py::object& make_parts) {
  const py::gil_scoped_acquire gil;
  return make_parts(mesh.groups(layout::kPeerAxes)).cast<std::shared_ptr<comm::Group>>();
}

}  // namespace

class PyEngine::Log final : public Logger {
 public:
  explicit Log(std::shared_ptr<py::object> callable) : callable_(std::move(callable)) {}
  void log(LogLevel level, std::string_view text) override {
    const py::gil_scoped_acquire gil;
    (*callable_)(static_cast<int>(level), py::str(text.data(), text.size()));
  }

 private:
  std::shared_ptr<py::object> callable_;
};

// Over groups of torch.distributed, which Python makes.
class PyEngine::Parts final : public comm::GroupMaker {
 public:
  explicit Parts(std::shared_ptr<py::object> make) : make_(std::move(make)) {}
  comm::Group make_parts(const std::vector<std::vector<int>>& parts, const std::string&) override {
    const py::gil_scoped_acquire gil;
    return std::move(*(*make_)(parts).cast<std::shared_ptr<comm::Group>>());
  }

 private:
  std::shared_ptr<py::object> make_;
};

PyEngine::PyEngine(const PyModel& model, const config::Resolved& config, PyRanks ranks,
                   const PyOptimizer& optimizer, py::object log)
    : group_(std::move(ranks.group)),
      peers_(group_),
      parts_(std::make_shared<Parts>(shared_object(ranks.make_parts))),
      log_(std::make_shared<Log>(shared_object(std::move(log)))) {
  engine::Options options = config.engine;
  const bool given = !optimizer.kind.empty() || !optimizer.make_step.is_none();
  if (given) {  // its groups hold the rates, where Python's schedules set them
    options.schedule.reset();
    options.optimizer.reset();
  }
  options.precision.cast_inputs = false;  // done once, at the root
  options.mesh.pipe = ranks.mesh.pipe;    // the model says; the rest is the configuration's
  engine::Parts parts{.group = {*group_, *parts_}, .logger = log_.get()};
  // Where an interpreter is, its own packages write these: a program may add to what they hold.
  options.monitor.others |= options.monitor.csv.enabled || options.monitor.tensorboard.enabled;
  options.monitor.csv.enabled = options.monitor.tensorboard.enabled = false;
  parts.monitors = monitor_maker(shared_object(ranks.make_monitors));
  parts.shared = config::shared_values(config.table);
  parts.shared.insert(parts.shared.end(), optimizer.shared.begin(), optimizer.shared.end());
  for (const auto& [name, tensor] : model.stored_buffers) {
    parts.extras.buffers.push_back({name, tensor});
  }
  parts.extras.aliases = model.aliases;
  for (const auto& [name, in_files, shape, begin, length] : model.slices) {
    parts.extras.stored_as.push_back(
        {name, in_files, {}, layout::TensorSlice{shape, {begin, length}}});
  }
  for (const auto& [key, stages, params] : model.ties) {
    parts.ties.push_back({.tie = {.key = key, .stages = stages}, .params = params});
  }
  if (!optimizer.kind.empty()) {
    options.optimizer = kernel_options(optimizer, to_kind(optimizer.kind));
  } else if (given) {
    parts.updater = [make_step = shared_object(optimizer.make_step)](shard::ShardedModel& sharded) {
      return python_updater(make_step, sharded);
    };
  } else if (!options.optimizer.has_value()) {
    engine::make_forward_only(options, parts);
  }
  shard::ModelView view = view_of(model, options.shard);
  for (const shard::BoundarySpec& boundary : view.boundaries) {
    boundary_names_.push_back(boundary.name);
  }
  const py::gil_scoped_release released;
  engine_ = {new engine::Engine(std::move(view), std::move(options), std::move(parts)), Drop()};
  const layout::Mesh& mesh = engine_->mesh().mesh();
  if (mesh.size(layout::kPeerAxes) < mesh.world_size()) peers_ = peers_of(mesh, ranks.make_parts);
}

std::vector<std::pair<std::string, bool>> PyEngine::boundaries() const {
  const shard::ShardedModel& model = engine_->inside().sharded();
  const shard::Settings& settings = model.settings();
  const bool waits = settings.policy.params == shard::Gather::per_use ||
                     settings.host.late_updates || !engine_->options().profile.trace.folder.empty();
  const bool looks = engine_->options().profile.find_nan;
  std::vector<std::pair<std::string, bool>> result;
  for (std::size_t i = 0; i < boundary_names_.size(); ++i) {
    const bool root = boundary_names_[i].empty();
    result.emplace_back(boundary_names_[i],
                        looks || (waits && (root || !model.plan().boundary_units[i].empty())));
  }
  return result;
}

std::vector<at::Tensor> PyEngine::begin_forward(int boundary, std::vector<at::Tensor> inputs) {
  std::vector<at::Tensor*> places;
  places.reserve(inputs.size());
  for (at::Tensor& input : inputs) places.push_back(&input);
  inside().hooks().begin_forward(boundary, places);
  return inputs;
}

void PyEngine::end_forward(std::vector<at::Tensor> outputs) {
  std::vector<at::Tensor*> places;
  places.reserve(outputs.size());
  for (at::Tensor& output : outputs) places.push_back(&output);
  inside().hooks().end_forward(places);
}

void PyEngine::drop_forward() { inside().hooks().drop_forward(); }

const shard::Unit& PyEngine::unit_of(int param) {
  return sharded().unit(sharded().plan().places.at(static_cast<std::size_t>(param)).unit);
}

void PyEngine::borrow(int param) {
  if (unit_of(param).state() == shard::UnitState::whole) {
    await_updates({param});
  } else {
    inside().hooks().also_uses(param);
  }
}

void PyEngine::await_updates(const std::vector<int>& params) {
  for (const int param : params) {
    if (unit_of(param).state() != shard::UnitState::whole) continue;
    sharded().updates().await(sharded().plan().places.at(static_cast<std::size_t>(param)).unit);
  }
}

void PyEngine::pin(const std::vector<int>& params) {
  for (const int param : params) {
    sharded().lend(sharded().plan().places.at(static_cast<std::size_t>(param)).unit);
  }
}

void PyEngine::unpin(const std::vector<int>& params) {
  for (const int param : params) {
    sharded().unpin(sharded().plan().places.at(static_cast<std::size_t>(param)).unit);
  }
}

}  // namespace capstan::python
