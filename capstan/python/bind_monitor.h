// The part of the engine's binding that tells monitors something.
#pragma once

#include <pybind11/pybind11.h>

#include "capstan/python/py_engine.h"

namespace capstan::python {

void bind_telling(pybind11::class_<PyEngine>& type);

}  // namespace capstan::python
