#include <span>
#include <string>
#include <vector>

#include <pybind11/stl.h>

#include "capstan/layout/mesh.h"
#include "capstan/layout/partition.h"
#include "capstan/layout/state_bytes.h"
#include "capstan/python/bind.h"

namespace capstan::python {
namespace py = pybind11;

namespace {

layout::Axes axes_of(const std::vector<layout::Axis>& named) {
  layout::Axes axes;
  for (const layout::Axis axis : named) axes = axes | axis;
  return axes;
}

void bind_mesh(py::module_& module) {
  using layout::Mesh;
  py::enum_<layout::Axis> names(module, "Axis", "A direction of a mesh of ranks.");
  for (const layout::Axis axis : layout::kAxes) {
    names.value(std::string(to_string(axis)).c_str(), axis);
  }
  py::class_<Mesh>(module, "Mesh", "A grid of ranks with named axes; see layout/mesh.h.")
      .def(py::init([](int world_size, const py::kwargs& given) {
             const auto size = [&given](const char* axis) {
               return given.contains(axis) ? given[axis].cast<int>() : 1;
             };
             return Mesh({.pipe = size("pipe"),
                          .shard = size("shard"),
                          .sequence = size("sequence"),
                          .tensor = size("tensor"),
                          .expert = size("expert")},
                         world_size);
           }),
           py::arg("world_size"))
      .def("size", py::overload_cast<layout::Axis>(&Mesh::size, py::const_), py::arg("axis"))
      .def("place", py::overload_cast<layout::Axis, int>(&Mesh::place, py::const_), py::arg("axis"),
           py::arg("rank"))
      .def(
          "groups",
          [](const Mesh& self, const std::vector<layout::Axis>& axes) {
            return self.groups(axes_of(axes));
          },
          py::arg("axes"));
}

}  // namespace

void bind_layout(py::module_& module) {
  bind_mesh(module);
  module.def("even_cuts", &layout::even_cuts, py::arg("items"), py::arg("parts"),
             "Where each of several parts that differ by at most one item begins, and the end.");
  module.def(
      "balanced_cuts",
      [](const std::vector<double>& weights, int parts) {
        return layout::balanced_cuts(weights, parts);
      },
      py::arg("weights"), py::arg("parts"),
      "Likewise, so that the heaviest part is as light as it can be and then the lightest as "
      "heavy.");
  using layout::StateQuestion;
  py::class_<StateQuestion>(module, "StateQuestion", "What state_bytes() is asked.")
      .def(py::init<>())
      .def_readwrite("params", &StateQuestion::params)
      .def_readwrite("largest_layer", &StateQuestion::largest_layer)
      .def_readwrite("gpus_per_node", &StateQuestion::gpus_per_node)
      .def_readwrite("nodes", &StateQuestion::nodes)
      .def_readwrite("offload_optimizer", &StateQuestion::offload_optimizer)
      .def_readwrite("offload_params", &StateQuestion::offload_params)
      .def_readwrite("sharded_init", &StateQuestion::sharded_init)
      .def_readwrite("host_factor", &StateQuestion::host_factor);
  module.def(
      "state_bytes",
      [](int stage, const StateQuestion& question) {
        const layout::StateBytes bytes = stage == 3 ? layout::stage3_state_bytes(question)
                                                    : layout::stage2_state_bytes(question);
        return py::make_tuple(bytes.host_per_node, bytes.device, bytes.largest_layer);
      },
      py::arg("stage"), py::arg("question"),
      "(host bytes per node, device bytes per GPU, bytes of the largest layer) at stage 2 or 3.");
}

}  // namespace capstan::python
