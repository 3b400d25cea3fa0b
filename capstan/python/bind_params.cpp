#include <memory>
#include <string>
#include <utility>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "capstan/python/bind.h"
#include "capstan/shard/loose_shard.h"

namespace capstan::python {
namespace py = pybind11;

void bind_params(py::module_& module) {
  using shard::LooseShard;
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<LooseShard, std::shared_ptr<LooseShard>>(
      module, "LooseShard", "A parameter that is sharded although no engine has it.")
      .def(py::init([](const at::Tensor& param, std::string name,
                       std::shared_ptr<comm::Group> group, c10::Device travel) {
             return std::make_shared<LooseShard>(param, std::move(name),
                                                 shard::LooseGroup{std::move(group), travel});
           }),
           py::arg("param"), py::arg("name"), py::arg("group"), py::arg("travel"), released)
      .def_property_readonly("sizes", &LooseShard::sizes)
      .def_property_readonly("part", &LooseShard::part)
      .def_property_readonly("group", &LooseShard::group)
      .def_property_readonly("travel", &LooseShard::travel)
      .def_property_readonly("whole", &LooseShard::whole)
      .def_property_readonly("changes", &LooseShard::changes)
      .def("pin", &LooseShard::pin, released)
      .def("unpin", &LooseShard::unpin, released)
      .def("take_from", &LooseShard::take_from, py::arg("root"), released)
      .def("cast", &LooseShard::cast, py::arg("dtype"), released);
}

}  // namespace capstan::python
