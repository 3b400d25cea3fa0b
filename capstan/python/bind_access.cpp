#include "capstan/python/bind_access.h"

#include <pybind11/stl.h>

#include "capstan/shard/access.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

shard::ColumnName column_name(PyEngine& self, const std::string& which) {
  if (which == "master") return {shard::Column::master};
  if (which == "gradient") return {shard::Column::gradient};
  return {shard::Column::moment, self.engine().moment_index(which)};
}

// Whole parameters, gradients and states.
void bind_whole_access(py::class_<PyEngine>& type) {
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

void bind_access(py::class_<PyEngine>& type) {
  bind_whole_access(type);
  bind_local_access(type);
}

}  // namespace capstan::python
