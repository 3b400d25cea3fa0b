// Reading and writing parameters, gradients and optimizer states, as methods of the engine's class.
#pragma once

#include <pybind11/pybind11.h>

#include "capstan/python/py_engine.h"

namespace capstan::python {

void bind_access(pybind11::class_<PyEngine>& type);

}  // namespace capstan::python
