#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>

#include "capstan/base/error.h"
#include "capstan/python/bind.h"
#include "capstan/python/bind_checkpoint.h"
#include "capstan/python/py_engine.h"
#include "capstan/python/py_values.h"
#include "capstan/shard/access.h"
#include "capstan/shard/hooks.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

PyOptimizer read_optimizer(const py::object& given) {
  PyOptimizer optimizer{.make_step = py::none()};
  if (!py::isinstance<py::tuple>(given)) {
    optimizer.make_step = given;
    return optimizer;
  }
  const auto pair = py::tuple(given);
  optimizer.kind = pair[0].cast<std::string>();
  for (const py::handle item : pair[1]) {
    const auto group = py::reinterpret_borrow<py::tuple>(item);
    optimizer.groups.emplace_back(to_hyper_params(group[0].cast<py::dict>()),
                                  group[1].cast<std::vector<std::string>>());
  }
  return optimizer;
}

// The default group, which serves no parameter, comes first.
void set_groups(PyEngine& self, const std::vector<py::dict>& groups) {
  std::vector<optim::HyperParams> hyper(1);
  for (const py::dict& group : groups) hyper.push_back(to_hyper_params(group));
  hyper.front() = hyper.back();
  hyper.front().lr = 0;
  hyper.front().weight_decay = 0;
  const py::gil_scoped_release released;  // updates that still run are waited for
  self.engine().set_hyper_params(hyper);
}

shard::ColumnName column_name(PyEngine& self, const std::string& which) {
  if (which == "master") return {shard::Column::master};
  if (which == "gradient") return {shard::Column::gradient};
  return {shard::Column::moment, self.engine().moment_index(which)};
}

void bind_use(py::class_<PyEngine>& type) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  type.def("boundaries", &PyEngine::boundaries)
      .def("begin_forward", &PyEngine::begin_forward, released)
      .def("end_forward", &PyEngine::end_forward, released)
      .def("drop_forward", &PyEngine::drop_forward, released)
      .def(
          "also_uses",
          [](PyEngine& self, int param) { return self.engine().hooks().also_uses(param); },
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

// As DeepSpeed's users know them.
constexpr std::pair<const char*, bool shard::AsideKinds::*> kAsideKinds[] = {
    {"optim_states", &shard::AsideKinds::moments},
    {"hp_params", &shard::AsideKinds::masters},
    {"lp_params", &shard::AsideKinds::params},
    {"lp_grads", &shard::AsideKinds::gradients}};

// None: all of them.
void offload_states(PyEngine& self, const std::optional<std::vector<std::string>>& names) {
  shard::AsideKinds kinds;
  std::vector<std::string> unknown = names.value_or(std::vector<std::string>());
  std::vector<std::string> known;
  for (const auto& [name, member] : kAsideKinds) {
    kinds.*member = std::erase(unknown, name) > 0 || !names;
    known.emplace_back(name);
  }
  if (!unknown.empty()) {
    throw ConfigError({.what = fmt::format("unknown kind of state: {}", fmt::join(unknown, ", ")),
                       .where = "offload_states()",
                       .fix = fmt::format("choose from {}", fmt::join(known, ", "))});
  }
  self.engine().offload_states(kinds);
}

std::vector<std::string> offloaded_states(PyEngine& self) {
  const shard::AsideKinds kinds = self.engine().offloaded_states();
  std::vector<std::string> names;
  for (const auto& [name, member] : kAsideKinds) {
    if (kinds.*member) names.emplace_back(name);
  }
  return names;
}

void bind_step(py::class_<PyEngine>& type) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  type.def(
          "backward",
          [](PyEngine& self, const at::Tensor& loss, bool retain_graph, bool average,
             std::optional<bool> boundary) {
            self.engine().backward(loss, {retain_graph, average, boundary});
          },
          py::arg("loss"), py::arg("retain_graph"), py::arg("average"), py::arg("boundary"),
          released)
      .def(
          "step",
          [](PyEngine& self, std::optional<bool> boundary) {
            self.note_change();
            return self.engine().step(boundary);
          },
          py::arg("boundary"), released)
      .def("expect_backward",
           [](PyEngine& self, bool allowed) { self.engine().expect_backward(allowed); })
      .def("scale",
           [](PyEngine& self, const at::Tensor& loss) { return self.engine().scale(loss); })
      .def("change_no_sync", [](PyEngine& self, int by) { self.engine().change_no_sync(by); })
      .def(
          "finish_gradients", [](PyEngine& self) { self.sharded().finish_gradients(); }, released)
      .def(
          "clear_gradients", [](PyEngine& self) { self.engine().clear_gradients(); }, released)
      .def("offload_states", &offload_states, py::arg("kinds"), released)
      .def(
          "reload_states", [](PyEngine& self) { self.engine().reload_states(); }, released)
      .def_property_readonly("offloaded_states", &offloaded_states)
      .def("set_groups", &set_groups)
      .def("set_accumulation_steps",
           [](PyEngine& self, std::int64_t steps) { self.engine().set_accumulation_steps(steps); })
      .def("set_loss_scale",
           [](PyEngine& self, double scale) { self.engine().set_loss_scale(scale); })
      .def_property_readonly("loss_scale",
                             [](PyEngine& self) { return self.engine().loss_scale(); })
      .def_property_readonly("scale_state",
                             [](PyEngine& self) {
                               const precision::LossScaleState& state = self.engine().scale_state();
                               return std::make_pair(state.last_overflow, state.tolerance);
                             })
      .def_property_readonly("progress", [](PyEngine& self) { return self.engine().progress(); })
      .def_property(
          "optimizer_steps", [](PyEngine& self) { return self.engine().optimizer_steps(); },
          [](PyEngine& self, std::int64_t steps) { self.engine().set_optimizer_steps(steps); })
      .def("describe", [](PyEngine& self) { return self.engine().describe(); });
}

// Whole parameters, gradients and states.
void bind_access(py::class_<PyEngine>& type) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  type.def(
          "read",
          [](PyEngine& self, int param, const std::string& which) {
            if (which == "gradient") return self.engine().gradient(param);
            return shard::read_whole(self.sharded(), param, column_name(self, which));
          },
          py::arg("param"), py::arg("which"), released)
      .def(
          "write",
          [](PyEngine& self, int param, const std::string& which, const at::Tensor& value) {
            if (which == "gradient") return self.engine().set_gradient(param, value);
            self.note_change();
            self.engine().before_change();
            shard::write_whole(self.sharded(), param, column_name(self, which), value);
          },
          py::arg("param"), py::arg("which"), py::arg("value"), released)
      .def(
          "read_param",
          [](PyEngine& self, int param) { return shard::read_param(self.sharded(), param); },
          released)
      .def(
          "write_param",
          [](PyEngine& self, int param, const at::Tensor& value) {
            self.note_change();
            self.engine().before_change();
            shard::write_param(self.sharded(), param, value);
          },
          released)
      .def(
          "take_from",
          [](PyEngine& self, int param, int root) {
            self.note_change();
            self.engine().before_change();
            shard::take_from(self.sharded(), param, root);
          },
          released)
      .def(
          "assemble",
          [](PyEngine& self, int param, const at::Tensor& mine) {
            return shard::assemble(self.sharded(), param, mine);
          },
          released);
}

// Where every rank updates everything, its part of a gradient is all of it, although the sums are
// kept in shards.
bool owns_whole_gradients(PyEngine& self) {
  return !self.sharded().settings().policy.shards_optimizer();
}

at::Tensor local_gradient(PyEngine& self, int param) {
  if (owns_whole_gradients(self)) return self.engine().gradient(param).view({-1});
  return shard::local_part(self.sharded(), param, {shard::Column::gradient})
      .to(at::kFloat)
      .mul(self.engine().gradient_factor());
}

void write_local(PyEngine& self, int param, const std::string& which, const at::Tensor& value) {
  self.note_change();
  self.engine().before_change();
  if (which != "gradient") {
    shard::write_local(self.sharded(), param, column_name(self, which), value);
  } else if (owns_whole_gradients(self)) {
    const auto& sizes = self.sharded().plan().params.at(static_cast<std::size_t>(param)).sizes;
    self.engine().set_gradient(param, value.view(sizes));
  } else {
    shard::write_local(self.sharded(), param, {shard::Column::gradient},
                       value / self.engine().gradient_factor());
  }
}

// This rank's part of them.
void bind_local_access(py::class_<PyEngine>& type) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  type.def(
          "local",
          [](PyEngine& self, int param, const std::string& which) {
            return shard::local_part(self.sharded(), param, column_name(self, which));
          },
          released)
      .def(
          "local_param",
          [](PyEngine& self, int param) { return shard::local_param(self.sharded(), param); },
          released)
      .def("local_gradient", &local_gradient, released)
      .def("write_local", &write_local, released)
      .def_property_readonly("changes", &PyEngine::changes)
      .def("owned_range", [](PyEngine& self, int param) {
        const layout::ElemRange range = shard::owned_range(self.sharded(), param);
        return std::make_pair(range.begin, range.end);
      });
}

}  // namespace

void bind_engine(py::module_& module) {
  py::class_<engine::StepReport>(module, "StepReport", "What one step() did.")
      .def_readonly("boundary", &engine::StepReport::boundary)
      .def_readonly("applied", &engine::StepReport::applied)
      .def_readonly("grad_norm", &engine::StepReport::grad_norm)
      .def_readonly("loss_scale", &engine::StepReport::loss_scale)
      .def_readonly("lr", &engine::StepReport::lr)
      .def_readonly("non_finite", &engine::StepReport::non_finite);
  py::class_<engine::Progress>(module, "Progress", "Counters of a run.")
      .def_readonly("micro_steps", &engine::Progress::micro_steps)
      .def_readonly("steps", &engine::Progress::steps)
      .def_readonly("skipped", &engine::Progress::skipped)
      .def_readonly("samples", &engine::Progress::samples);
  py::class_<PyModel>(module, "Model", "A model's parameters, buffers and tree of modules.")
      .def(py::init<>())
      .def_readwrite("names", &PyModel::names)
      .def_readwrite("params", &PyModel::params)
      .def_readwrite("travel", &PyModel::travel)
      .def_readwrite("buffers", &PyModel::buffers)
      .def_readwrite("stored_buffers", &PyModel::stored_buffers)
      .def_readwrite("aliases", &PyModel::aliases)
      .def_readwrite("tree", &PyModel::tree)
      .def_readwrite("loose", &PyModel::loose)
      .def_readwrite("device", &PyModel::device);
  py::class_<PyEngine> type(module, "Engine", "The engine behind capstan.Engine.");
  type.def(py::init([](const PyModel& model, const config::Resolved& config,
                       std::shared_ptr<comm::Group> group, const py::object& optimizer,
                       std::vector<std::pair<std::string, std::string>> shared, py::object log) {
             PyOptimizer read = read_optimizer(optimizer);
             read.shared = std::move(shared);
             return std::make_unique<PyEngine>(model, config, std::move(group), read,
                                               std::move(log));
           }),
           py::arg("model"), py::arg("config"), py::arg("group"), py::arg("optimizer"),
           py::arg("shared"), py::arg("log"));
  bind_use(type);
  bind_step(type);
  bind_access(type);
  bind_local_access(type);
  bind_checkpoints(type);
}

}  // namespace capstan::python
