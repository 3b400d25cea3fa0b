// Saving and loading, as methods of the engine's class, and files of checkpoints.
#pragma once

#include <pybind11/pybind11.h>

#include "capstan/python/py_engine.h"

namespace capstan::python {

void bind_checkpoints(pybind11::class_<PyEngine>& type);
void bind_checkpoint_files(pybind11::module_& module);

}  // namespace capstan::python
