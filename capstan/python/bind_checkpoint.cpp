#include "capstan/python/bind_checkpoint.h"

#include <optional>

#include <pybind11/stl.h>

#include "capstan/engine/checkpoint_types.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

// (folder, client_state) of what was saved. Texts are JSON; `files` are names and bytes.
std::string save(PyEngine& self, const std::string& folder, const py::dict& given) {
  engine::SaveOptions options;
  options.tag = given["tag"].cast<std::string>();
  options.client_state = given["client_state"].cast<std::string>();
  options.lr_scheduler = given["lr_scheduler"].cast<std::string>();
  options.save_latest = given["save_latest"].cast<bool>();
  options.exclude_frozen_parameters = given["exclude_frozen_parameters"].cast<bool>();
  for (const py::handle item : given["files"]) {
    const auto pair = py::reinterpret_borrow<py::tuple>(item);
    options.extra_files.push_back({pair[0].cast<std::string>(), pair[1].cast<std::string>()});
  }
  const py::gil_scoped_release released;
  return self.engine().save_checkpoint(folder, options).folder.string();
}

// None, or (folder, client_state, lr_scheduler, what was skipped).
py::object load(PyEngine& self, const std::string& folder, const py::dict& given) {
  const engine::LoadOptions options{
      .tag = given["tag"].cast<std::string>(),
      .load_module_strict = given["load_module_strict"].cast<bool>(),
      .load_optimizer_states = given["load_optimizer_states"].cast<bool>(),
      .load_lr_scheduler_states = given["load_lr_scheduler_states"].cast<bool>(),
      .load_module_only = given["load_module_only"].cast<bool>()};
  std::optional<engine::Loaded> loaded;
  {
    const py::gil_scoped_release released;
    loaded = self.engine().load_checkpoint(folder, options);
  }
  if (!loaded.has_value()) return py::none();
  return py::make_tuple(loaded->folder.string(), loaded->client_state, loaded->lr_scheduler,
                        loaded->skipped);
}

}  // namespace

void bind_checkpoints(py::class_<PyEngine>& type) {
  type.def("save_checkpoint", &save, py::arg("folder"), py::arg("options"))
      .def("load_checkpoint", &load, py::arg("folder"), py::arg("options"));
}

}  // namespace capstan::python
