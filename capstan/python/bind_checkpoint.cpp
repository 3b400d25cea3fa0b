#include "capstan/python/bind_checkpoint.h"

#include <optional>
#include <tuple>

#include <ATen/ops/empty.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "capstan/checkpoint/copy.h"
#include "capstan/checkpoint/deepspeed/export.h"
#include "capstan/checkpoint/deepspeed/flat_part.h"
#include "capstan/checkpoint/deepspeed/import.h"
#include "capstan/engine/checkpoint_types.h"
#include "capstan/engine/stored_tensors.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

// The folder of what was saved. Texts are JSON; `tensors` are names and tensors.
std::string save(PyEngine& self, const std::string& folder, const py::dict& given) {
  engine::SaveOptions options;
  options.tag = given["tag"].cast<std::string>();
  options.client_state = given["client_state"].cast<std::string>();
  options.lr_scheduler = given["lr_scheduler"].cast<std::string>();
  for (const py::handle item : given["param_groups"]) {
    const auto pair = py::reinterpret_borrow<py::tuple>(item);
    options.param_groups.push_back(
        {pair[0].cast<std::vector<std::string>>(), pair[1].cast<std::map<std::string, double>>()});
  }
  options.save_latest = given["save_latest"].cast<bool>();
  options.exclude_frozen_parameters = given["exclude_frozen_parameters"].cast<bool>();
  for (const py::handle item : given["tensors"]) {
    const auto pair = py::reinterpret_borrow<py::tuple>(item);
    options.client_tensors.push_back({pair[0].cast<std::string>(), pair[1].cast<at::Tensor>()});
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
    self.note_change();
    const py::gil_scoped_release released;
    loaded = self.engine().load_checkpoint(folder, options);
  }
  if (!loaded.has_value()) return py::none();
  return py::make_tuple(loaded->folder.string(), loaded->client_state, loaded->lr_scheduler,
                        loaded->skipped);
}

py::object to_python(const checkpoint::PyValue& value) {
  using checkpoint::PyKind;
  const auto list_of = [](const std::vector<checkpoint::PyRef>& items) {
    py::list list;
    for (const checkpoint::PyRef& item : items) list.append(to_python(*item));
    return list;
  };
  const auto dict_of = [](const auto& entries) {
    py::dict dict;
    for (const auto& [key, item] : entries) dict[to_python(*key)] = to_python(*item);
    return dict;
  };
  switch (value.kind) {
    case PyKind::none:
      return py::none();
    case PyKind::boolean:
      return py::bool_(value.boolean);
    case PyKind::integer:
      return py::int_(value.integer);
    case PyKind::real:
      return py::float_(value.real);
    case PyKind::text:
      return py::str(value.text);
    case PyKind::list:
      return list_of(value.items);
    case PyKind::tuple:
      return py::tuple(list_of(value.items));
    case PyKind::dict:
      return dict_of(value.dict);
    case PyKind::tensor:
      return py::cast(at::empty(
          value.tensor.shape,
          at::TensorOptions(engine::scalar_type_of(value.tensor.element)).device(at::kMeta)));
    case PyKind::object:
      break;
  }
  return py::make_tuple(value.text, list_of(value.items), dict_of(value.dict));
}

py::object read_torch_file(const std::string& path) {
  return to_python(checkpoint::TorchArchive(path).root());
}

}  // namespace

void bind_checkpoints(py::class_<PyEngine>& type) {
  type.def("save_checkpoint", &save, py::arg("folder"), py::arg("options"))
      .def("load_checkpoint", &load, py::arg("folder"), py::arg("options"))
      .def(
          "finish_saves", [](PyEngine& self) { self.engine().finish_saves(); },
          py::call_guard<py::gil_scoped_release>());
}

void bind_checkpoint_files(py::module_& module) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  module.def(
      "copy_checkpoint",
      [](const std::string& from, const std::string& folder, const std::string& tag) {
        checkpoint::Reader reader = checkpoint::open_reader(from);
        return checkpoint::copy_checkpoint(reader, {folder, tag, /*latest=*/false}).folder.string();
      },
      py::arg("checkpoint"), py::arg("folder"), py::arg("tag"), released,
      "Writes a checkpoint, of DeepSpeed's layout or ours, as one of ours that is never the "
      "newest.");
  module.def(
      "export_deepspeed",
      [](const std::string& from, const std::string& folder, int stage, int ranks) {
        checkpoint::Reader reader(from);
        checkpoint::export_deepspeed(reader, folder, {stage, ranks});
      },
      py::arg("checkpoint"), py::arg("folder"), py::arg("stage") = -1, py::arg("ranks") = 0,
      released, "Writes a checkpoint of ours in DeepSpeed's layout.");
  module.def(
      "flat_part",
      [](const std::vector<std::int64_t>& sizes, int stage, int rank, int ranks) {
        std::vector<std::tuple<int, std::int64_t, std::int64_t>> pieces;
        for (const checkpoint::FlatPiece& piece :
             checkpoint::flat_part(sizes, stage, rank, ranks)) {
          pieces.emplace_back(piece.tensor, piece.begin, piece.elems);
        }
        return pieces;
      },
      py::arg("sizes"), py::arg("stage"), py::arg("rank"), py::arg("ranks"),
      "A rank's part of a group in DeepSpeed's layout: (tensor or -1 for zeros, begin, elements).");
  module.def("read_torch_file", &read_torch_file, py::arg("path"),
             "What a file of torch.save holds, as plain data: tensors have no values, objects are "
             "(class, arguments, attributes). Nothing of it is run.");
}

}  // namespace capstan::python
