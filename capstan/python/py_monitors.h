// Monitors that are objects of Python.
#pragma once

#include <memory>

#include <pybind11/pybind11.h>

#include "capstan/engine/monitoring.h"

namespace capstan::python {

// `make()` gives None where this rank writes nothing at all, else a list of functions that take a
// list of events (name, value, samples). Its ConfigError or IoError becomes ours, so that all ranks raise it.
engine::MonitorMaker monitor_maker(std::shared_ptr<pybind11::object> make);

}  // namespace capstan::python
