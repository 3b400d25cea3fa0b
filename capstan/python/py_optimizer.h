// The optimizer of a Python engine: groups of our own kernels, or an object of Python's behind the
// engine's updater.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>

#include "capstan/engine/updater.h"
#include "capstan/optim/options.h"

namespace capstan::python {

// `kind` with groups: our kernels. `make_step`: an optimizer of Python's. Neither: none at all.
struct PyOptimizer {
  std::string kind;
  std::vector<std::pair<optim::HyperParams, std::vector<std::string>>> groups;  // parameter names
  // [(parameter index, tensor, first element)] -> an object with step() and, for checkpoints, kind,
  // tensors(piece), scalars() and make(names, scalars); see capstan/optimizers.py.
  pybind11::object make_step;
  // What all ranks must have alike, by Python's names.
  std::vector<std::pair<std::string, std::string>> shared;
};

// A pair of kind and groups, or a callable.
PyOptimizer read_optimizer(const pybind11::object& given);

// Parameters that no group names keep their values: the default group's rates are zero.
optim::Options kernel_options(const PyOptimizer& optimizer, optim::Kind kind);

// The engine's updater over what `make_step` returns.
std::unique_ptr<engine::Updater> python_updater(const std::shared_ptr<pybind11::object>& make_step,
                                                shard::ShardedModel& sharded);

// A Python object that may be dropped by a thread without the GIL.
std::shared_ptr<pybind11::object> shared_object(pybind11::object object);

}  // namespace capstan::python
