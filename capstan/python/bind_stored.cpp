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

// A reader and how its checkpoint was found.
struct Stored : Reader {
  Stored(Reader reader, std::vector<std::string> passed)
      : Reader(std::move(reader)), passed_over(std::move(passed)) {}
  std::vector<std::string> passed_over;  // newer ones that are damaged, a sentence each
};

std::unique_ptr<Stored> open_stored(const std::filesystem::path& folder, const std::string& tag) {
  const auto open = [](const std::filesystem::path& at, std::vector<std::string> passed = {}) {
    return std::make_unique<Stored>(checkpoint::open_reader(at), std::move(passed));
  };
  if (const auto theirs = checkpoint::find_deepspeed(folder, tag); theirs.has_value()) {
    return open(*theirs);
  }
  if (!tag.empty()) return open(folder / tag);
  if (std::filesystem::exists(folder / checkpoint::kIndexFile)) return open(folder);
  const std::optional<checkpoint::Choice> choice = checkpoint::choose_newest(folder);
  if (choice.has_value()) {
    std::vector<std::string> passed;
    for (const checkpoint::Found& each : choice->passed_over) {
      passed.push_back(checkpoint::passed_over_text(each));
    }
    return open(choice->taken.folder, std::move(passed));
  }
  throw ConfigError({.what = "there is no checkpoint here",
                     .where = folder.string(),
                     .fix = "give the folder that you passed to save_checkpoint()"});
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
  py::class_<Stored>(module, "StoredCheckpoint",
                     "A checkpoint on disk, ours or DeepSpeed's, read tensor by tensor.")
      .def(py::init([](const std::string& folder, const std::string& tag) {
             return open_stored(folder, tag);
           }),
           py::arg("folder"), py::arg("tag") = "", released)
      .def_readonly("passed_over", &Stored::passed_over)
      .def_property_readonly("folder", [](const Stored& self) { return self.folder().string(); })
      .def_property_readonly("aliases",
                             [](const Stored& self) { return self.index().state.aliases; })
      .def_property_readonly("frozen", [](const Stored& self) { return self.index().state.frozen; })
      .def_property_readonly("param_groups", [](const Stored& self) { return groups_of(self); })
      .def(
          "names",
          [](const Stored& self, const std::string& column) { return names_of(self, column); },
          py::arg("column"))
      .def(
          "spec",
          [](const Stored& self, const std::string& column, const std::string& name) {
            const checkpoint::TensorSpec& spec = self.index().tensor(column, name).spec;
            return std::make_pair(engine::scalar_type_of(spec.element), spec.shape);
          },
          py::arg("column"), py::arg("name"),
          "The dtype and shape of a tensor, without reading it.")
      .def(
          "read",
          [](Stored& self, const std::string& column, const std::string& name) {
            return engine::read_tensor(self, self.index().tensor(column, name));
          },
          py::arg("column"), py::arg("name"), released);
}

}  // namespace capstan::python
