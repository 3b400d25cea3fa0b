// Values of our own types as Python objects, and back.
#pragma once

#include <optional>

#include <pybind11/pybind11.h>

#include "capstan/base/own_process.h"
#include "capstan/json/value.h"
#include "capstan/optim/options.h"

namespace capstan::python {

// Deletes what ends threads: one of them may be about to drop an object of Python's, and need the
// GIL. In a forked child there are none to end: there it is left alone.
class Drop {
 public:
  template <typename Owner>
  void operator()(Owner* owner) const {
    if (!process_.is_here()) return;
    std::optional<pybind11::gil_scoped_release> released;
    if (PyGILState_Check() != 0) released.emplace();
    delete owner;
  }

 private:
  OwnProcess process_;
};

pybind11::object to_python(const json::Value& value);

// Dicts, lists, tuples and scalars as they are, numbers of NumPy as numbers, anything else as its
// str(). Throws ConfigError for what is nested too deeply; `where` names the whole.
json::Value to_json(const pybind11::handle& object, const std::string& where);

// From a group of a torch optimizer: the names are torch's.
optim::HyperParams to_hyper_params(const pybind11::dict& group);
// Throws ConfigError for a name that is no kind.
optim::Kind to_kind(const std::string& name);

}  // namespace capstan::python
