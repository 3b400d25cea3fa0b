#include <memory>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "capstan/python/bind.h"
#include "capstan/shard/early_shard.h"

namespace capstan::python {
namespace py = pybind11;

void bind_params(py::module_& module) {
  using shard::EarlyShard;
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<EarlyShard, std::shared_ptr<EarlyShard>>(
      module, "EarlyShard", "A parameter that is sharded before its model has an engine.")
      .def(py::init<const at::Tensor&, std::string, std::shared_ptr<comm::Group>, c10::Device>(),
           py::arg("param"), py::arg("name"), py::arg("group"), py::arg("travel"), released)
      .def_property_readonly("sizes", &EarlyShard::sizes)
      .def_property_readonly("part", &EarlyShard::part)
      .def_property_readonly("group", &EarlyShard::group)
      .def_property_readonly("travel", &EarlyShard::travel)
      .def_property_readonly("whole", &EarlyShard::whole)
      .def("pin", &EarlyShard::pin, released)
      .def("unpin", &EarlyShard::unpin, released)
      .def("take_from", &EarlyShard::take_from, py::arg("root"), released);
}

}  // namespace capstan::python
