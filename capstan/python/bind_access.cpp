#include "capstan/python/bind_access.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>

#include "capstan/base/error.h"
#include "capstan/shard/access.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

engine::Access& access_of(PyEngine& self) { return self.inside().access(); }

shard::ColumnName column_name(PyEngine& self, const std::string& which) {
  if (which == "master") return {shard::Column::master};
  if (which == "gradient") return {shard::Column::gradient};
  return access_of(self).state(which);
}

// Whole parameters, gradients and states.
void bind_whole_access(py::class_<PyEngine>& type) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  type.def(
          "read",
          [](PyEngine& self, int param, const std::string& which) {
            return access_of(self).read(param, column_name(self, which));
          },
          py::arg("param"), py::arg("which"), released)
      .def(
          "write",
          [](PyEngine& self, int param, const std::string& which, const at::Tensor& value) {
            if (which != "gradient") self.note_change();
            access_of(self).write(param, column_name(self, which), value);
          },
          py::arg("param"), py::arg("which"), py::arg("value"), released)
      .def(
          "read_param", [](PyEngine& self, int param) { return access_of(self).param(param); },
          released)
      .def(
          "write_param",
          [](PyEngine& self, int param, const at::Tensor& value) {
            self.note_change();
            access_of(self).set_param(param, value);
          },
          released)
      .def(
          "take_from",
          [](PyEngine& self, int param, int root) {
            self.note_change();
            access_of(self).take_from(param, root);
          },
          released)
      .def(
          "gradient_norms",
          [](PyEngine& self, const std::vector<std::vector<int>>& sets) {
            return access_of(self).gradient_norms(sets);
          },
          py::arg("sets"), released)
      .def(
          "assemble",
          [](PyEngine& self, int param, const at::Tensor& mine) {
            return shard::assemble(self.sharded(), param, mine);
          },
          released);
}

// This rank's part of them.
void bind_local_access(py::class_<PyEngine>& type) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  type.def(
          "local",
          [](PyEngine& self, int param, const std::string& which) {
            return access_of(self).read_local(param, column_name(self, which));
          },
          released)
      .def(
          "local_param",
          [](PyEngine& self, int param) { return shard::local_param(self.sharded(), param); },
          released)
      .def(
          "write_local",
          [](PyEngine& self, int param, const std::string& which, const at::Tensor& value) {
            self.note_change();
            access_of(self).write_local(param, column_name(self, which), value);
          },
          released)
      .def_property_readonly("changes", &PyEngine::changes)
      .def("owned_range", [](PyEngine& self, int param) {
        const layout::ElemRange range = shard::owned_range(self.sharded(), param);
        return std::make_pair(range.begin, range.end);
      });
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

void bind_aside(py::class_<PyEngine>& type) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  type.def("offload_states", &offload_states, py::arg("kinds"), released)
      .def(
          "reload_states", [](PyEngine& self) { self.engine().reload_states(); }, released)
      .def_property_readonly("offloaded_states", &offloaded_states);
}

}  // namespace

void bind_access(py::class_<PyEngine>& type) {
  bind_whole_access(type);
  bind_local_access(type);
  bind_aside(type);
}

}  // namespace capstan::python
