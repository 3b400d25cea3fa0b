#include <memory>
#include <optional>
#include <utility>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/deepspeed/import.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/reader.h"
#include "capstan/engine/stored_tensors.h"
#include "capstan/python/bind.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

using checkpoint::Reader;

std::filesystem::path checkpoint_in(const std::filesystem::path& folder, const std::string& tag) {
  if (const auto theirs = checkpoint::find_deepspeed(folder, tag); theirs.has_value()) {
    return *theirs;
  }
  if (!tag.empty()) return folder / tag;
  if (std::filesystem::exists(folder / checkpoint::kIndexFile)) return folder;
  const std::optional<checkpoint::Choice> choice = checkpoint::choose_newest(folder);
  if (choice.has_value()) return choice->taken.folder;
  throw ConfigError({.what = "there is no checkpoint here",
                     .where = folder.string(),
                     .fix = "give the folder that save_checkpoint() was given"});
}

std::vector<std::string> names_of(const Reader& reader, const std::string& column) {
  std::vector<std::string> names;
  const checkpoint::Column* const found = reader.index().find(column);
  if (found == nullptr) return names;
  for (const checkpoint::IndexTensor& tensor : found->tensors) names.push_back(tensor.spec.name);
  return names;
}

// (names, hyper-parameters) of each.
py::list groups_of(const Reader& reader) {
  py::list groups;
  for (const checkpoint::ParamGroup& group : reader.index().state.param_groups) {
    groups.append(py::make_tuple(group.params, group.hyper));
  }
  return groups;
}

}  // namespace

void bind_stored(py::module_& module) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<Reader>(module, "StoredCheckpoint",
                     "A checkpoint on disk, ours or DeepSpeed's, read tensor by tensor.")
      .def(py::init([](const std::string& folder, const std::string& tag) {
             return std::make_unique<Reader>(checkpoint::open_reader(checkpoint_in(folder, tag)));
           }),
           py::arg("folder"), py::arg("tag") = "", released)
      .def_property_readonly("folder", [](const Reader& self) { return self.folder().string(); })
      .def_property_readonly("aliases",
                             [](const Reader& self) { return self.index().state.aliases; })
      .def_property_readonly("frozen", [](const Reader& self) { return self.index().state.frozen; })
      .def_property_readonly("param_groups", &groups_of)
      .def("names", &names_of, py::arg("column"))
      .def(
          "spec",
          [](const Reader& self, const std::string& column, const std::string& name) {
            const checkpoint::TensorSpec& spec = self.index().tensor(column, name).spec;
            return std::make_pair(engine::scalar_type_of(spec.element), spec.shape);
          },
          py::arg("column"), py::arg("name"),
          "The dtype and shape of a tensor, without reading it.")
      .def(
          "read",
          [](Reader& self, const std::string& column, const std::string& name) {
            return engine::read_tensor(self, self.index().tensor(column, name));
          },
          py::arg("column"), py::arg("name"), released);
}

}  // namespace capstan::python
