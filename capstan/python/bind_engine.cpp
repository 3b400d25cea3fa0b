#include <algorithm>
#include <optional>

#include <pybind11/stl.h>

#include "capstan/python/bind.h"
#include "capstan/python/bind_access.h"
#include "capstan/python/bind_checkpoint.h"
#include "capstan/python/bind_monitor.h"
#include "capstan/python/py_engine.h"
#include "capstan/python/py_optimizer.h"
#include "capstan/python/py_values.h"
#include "capstan/shard/hooks.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

// The default group, which serves no parameter, comes first.
void set_groups(PyEngine& self, const std::vector<py::dict>& groups) {
  std::vector<optim::HyperParams> hyper(1);
  for (const py::dict& group : groups) hyper.push_back(to_hyper_params(group));
  hyper.front() = hyper.back();
  hyper.front().lr = 0;
  hyper.front().weight_decay = 0;
  const py::gil_scoped_release released;  // updates that still run are waited for
  self.inside().step().set_hyper_params(hyper);
}

void bind_use(py::class_<PyEngine>& type) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  type.def("boundaries", &PyEngine::boundaries)
      .def("begin_forward", &PyEngine::begin_forward, released)
      .def("end_forward", &PyEngine::end_forward, released)
      .def("drop_forward", &PyEngine::drop_forward, released)
      .def(
          "also_uses",
          [](PyEngine& self, int param) { return self.inside().hooks().also_uses(param); },
          released)
      .def("borrow", &PyEngine::borrow, released)
      .def("await_updates", &PyEngine::await_updates, released)
      .def("sizes",
           [](PyEngine& self, int param) {
             return self.sharded().plan().params.at(static_cast<std::size_t>(param)).sizes;
           })
      .def("is_whole",
           [](PyEngine& self, int param) {
             return self.unit_of(param).state() == shard::UnitState::whole;
           })
      .def("is_gathering",
           [](PyEngine& self, int param) {
             return self.unit_of(param).state() == shard::UnitState::gathering;
           })
      .def("is_resident",
           [](PyEngine& self, int param) { return self.unit_of(param).keeps_whole(); })
      .def("pin", &PyEngine::pin, released)
      .def("unpin", &PyEngine::unpin, released)
      .def("leave_shards", &PyEngine::leave_shards, released)
      .def(
          "end_pass", [](PyEngine& self) { self.sharded().end_pass(); }, released)
      .def("give_back", [](PyEngine& self) { self.sharded().give_back(); }, released);
}

void bind_step(py::class_<PyEngine>& type) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  type.def(
          "backward",
          [](PyEngine& self, const at::Tensor& loss, const engine::BackwardOptions& how) {
            self.engine().backward(loss, how);
          },
          py::arg("loss"), py::arg("how"), released)
      .def(
          "backward_outputs",
          [](PyEngine& self, const std::vector<at::Tensor>& outputs,
             const std::vector<std::optional<at::Tensor>>& gradients,
             const engine::BackwardOptions& how) {
            std::vector<at::Tensor> given;
            for (const auto& each : gradients) given.push_back(each.value_or(at::Tensor()));
            self.engine().backward(outputs, given, how);
          },
          py::arg("outputs"), py::arg("gradients"), py::arg("how"), released)
      .def(
          "step",
          [](PyEngine& self, std::optional<bool> boundary) {
            self.note_change();
            return self.engine().step(boundary);
          },
          py::arg("boundary"), released)
      .def("expect_backward",
           [](PyEngine& self, bool allowed) { self.inside().backward().expect_plain(allowed); })
      .def("scale", [](PyEngine& self,
                       const at::Tensor& loss) { return self.inside().backward().scale(loss); })
      .def("change_no_sync",
           [](PyEngine& self, int by) { self.inside().backward().change_no_sync(by); })
      .def(
          "finish_gradients", [](PyEngine& self) { self.sharded().finish_gradients(); }, released)
      .def(
          "clear_gradients", [](PyEngine& self) { self.engine().clear_gradients(); }, released)
      .def("set_groups", &set_groups)
      .def("set_batch",
           [](PyEngine& self, std::int64_t train, std::int64_t micro, std::int64_t accumulation) {
             engine::BatchOptions& batch = self.inside().options.batch;
             batch = {.train_samples = train,
                      .micro_samples = micro,
                      .accumulation_steps = accumulation,
                      .managed_accumulation = batch.managed_accumulation};
             self.inside().backward().options_changed();
           })
      .def_property_readonly("next_ends_step",
                             [](PyEngine& self) {
                               return self.inside().run.next_ends_step(self.inside().options.batch);
                             })
      .def("set_loss_scale",
           [](PyEngine& self, double scale) { self.inside().run.loss_scale.scale = scale; })
      .def_property_readonly("loss_scale",
                             [](PyEngine& self) { return self.engine().loss_scale(); })
      .def_property_readonly("scale_state",
                             [](PyEngine& self) {
                               const precision::LossScaleState& state =
                                   self.inside().run.loss_scale;
                               return std::make_pair(state.last_overflow, state.tolerance);
                             })
      .def_property(
          "progress", [](PyEngine& self) { return self.engine().progress(); },
          [](PyEngine& self, const engine::Progress& other) {
            self.inside().run.set_progress(other);
          })
      .def_property(
          "optimizer_steps", [](PyEngine& self) { return self.inside().run.optimizer_steps(); },
          [](PyEngine& self, std::int64_t steps) { self.inside().run.set_optimizer_steps(steps); })
      .def("describe", [](PyEngine& self) { return self.engine().describe(); });
}

}  // namespace

void bind_engine(py::module_& module) {
  py::class_<PyModel>(module, "Model", "A model's parameters, buffers and tree of modules.")
      .def(py::init<>())
      .def_readwrite("names", &PyModel::names)
      .def_readwrite("params", &PyModel::params)
      .def_readwrite("travel", &PyModel::travel)
      .def_readwrite("buffers", &PyModel::buffers)
      .def_readwrite("stored_buffers", &PyModel::stored_buffers)
      .def_readwrite("aliases", &PyModel::aliases)
      .def_readwrite("slices", &PyModel::slices)
      .def_readwrite("tree", &PyModel::tree)
      .def_readwrite("ties", &PyModel::ties)
      .def_readwrite("loose", &PyModel::loose)
      .def_readwrite("device", &PyModel::device);
  py::class_<engine::MeshOptions>(module, "MeshOptions", "How many ranks share one model.")
      .def(py::init<int, int, int>(), py::kw_only(), py::arg("pipe") = 1, py::arg("sequence") = 1,
           py::arg("tensor") = 1)
      .def_readonly("pipe", &engine::MeshOptions::pipe)
      .def_readonly("sequence", &engine::MeshOptions::sequence)
      .def_readonly("tensor", &engine::MeshOptions::tensor)
      .def(
          "data_ranks",
          [](const engine::MeshOptions& mesh,
             int world_size) {  // what does not divide is the engine's to refuse
            return std::max(1, world_size / std::max(1, mesh.product()));
          },
          py::arg("world_size"), "How many data-parallel ranks of so many are left.");
  py::class_<PyEngine> type(module, "Engine", "The engine behind capstan.Engine.");
  type.def(py::init([](const PyModel& model, const config::Resolved& config,
                       std::shared_ptr<comm::Group> group, const py::object& optimizer,
                       std::vector<std::pair<std::string, std::string>> shared, py::object log,
                       py::object make_parts, py::object make_monitors,
                       const engine::MeshOptions& mesh) {
             PyOptimizer read = read_optimizer(optimizer);
             read.shared = std::move(shared);
             return std::make_unique<PyEngine>(
                 model, config,
                 PyRanks{std::move(group), std::move(make_parts), std::move(make_monitors), mesh},
                 read, std::move(log));
           }),
           py::arg("model"), py::arg("config"), py::arg("group"), py::arg("optimizer"),
           py::arg("shared"), py::arg("log"), py::arg("make_parts"), py::arg("make_monitors"),
           py::arg("mesh") = engine::MeshOptions());
  bind_use(type);
  bind_step(type);
  bind_telling(type);
  bind_access(type);
  bind_checkpoints(type);
}

}  // namespace capstan::python
