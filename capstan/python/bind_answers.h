// What a checked configuration decides; bind_config.cpp binds the rest of it.
#pragma once

#include <memory>

#include <pybind11/pybind11.h>

#include "capstan/config/resolve.h"

namespace capstan::python {

using ConfigClass = pybind11::class_<config::Resolved, std::shared_ptr<config::Resolved>>;

void bind_answers(ConfigClass& config);
void bind_loss_scale(pybind11::module_& module);

}  // namespace capstan::python
