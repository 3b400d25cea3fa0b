// The parts of the extension module capstan._C: one function per area, each in bind_<area>.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace capstan::python {

void bind_errors(pybind11::module_& module);
void bind_config(pybind11::module_& module);
void bind_batch(pybind11::module_& module);
void bind_schedule(pybind11::module_& module);
void bind_data(pybind11::module_& module);
void bind_layout(pybind11::module_& module);
void bind_launch(pybind11::module_& module);
void bind_optim(pybind11::module_& module);
void bind_group(pybind11::module_& module);
void bind_sequence(pybind11::module_& module);
void bind_tensor(pybind11::module_& module);
void bind_profile(pybind11::module_& module);
void bind_params(pybind11::module_& module);
void bind_reports(pybind11::module_& module);
void bind_engine(pybind11::module_& module);
void bind_estimate(pybind11::module_& module);
void bind_monitor(pybind11::module_& module);
void bind_stored(pybind11::module_& module);
void bind_pipeline(pybind11::module_& module);

}  // namespace capstan::python
