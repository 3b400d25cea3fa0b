// What an engine is told of one backward, and what it answers after a step.
#include <optional>

#include <pybind11/stl.h>

#include "capstan/engine/engine.h"
#include "capstan/python/bind.h"

namespace capstan::python {
namespace py = pybind11;

void bind_reports(py::module_& module) {
  py::class_<engine::BackwardOptions>(module, "BackwardOptions", "How one backward is run.")
      .def(py::init<bool, bool, bool, std::optional<bool>>(), py::arg("retain_graph"),
           py::arg("average_accumulation"), py::arg("already_scaled"), py::arg("boundary"));
  py::class_<engine::StepReport>(module, "StepReport", "What one step() did.")
      .def_readonly("boundary", &engine::StepReport::boundary)
      .def_readonly("applied", &engine::StepReport::applied)
      .def_readonly("grad_norm", &engine::StepReport::grad_norm)
      .def_readonly("loss_scale", &engine::StepReport::loss_scale)
      .def_readonly("lr", &engine::StepReport::lr)
      .def_readonly("log_due", &engine::StepReport::log_due)
      .def_readonly("non_finite", &engine::StepReport::non_finite);
  py::class_<engine::Progress>(module, "Progress", "Counters of a run.")
      .def(py::init<>())
      .def_readwrite("micro_steps", &engine::Progress::micro_steps)
      .def_readwrite("step_calls", &engine::Progress::step_calls)
      .def_readwrite("steps", &engine::Progress::steps)
      .def_readwrite("skipped", &engine::Progress::skipped)
      .def_readwrite("samples", &engine::Progress::samples)
      .def_readonly("samples_per_second", &engine::Progress::samples_per_second);
}

}  // namespace capstan::python
