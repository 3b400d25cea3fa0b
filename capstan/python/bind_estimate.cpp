#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <pybind11/stl.h>

#include "capstan/config/resolve.h"
#include "capstan/python/bind.h"
#include "capstan/python/py_values.h"
#include "capstan/shard/module_tree.h"
#include "capstan/tune/table.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

using tune::MemoryRow;

// As ModelView of Python has them: name, class, parent, is_list, is_called, parameters.
using Tree = std::vector<std::tuple<std::string, std::string, int, bool, bool, std::vector<int>>>;
// Kind, number, bytes.
using Events = std::vector<std::tuple<std::string, int, std::int64_t>>;

std::vector<std::pair<std::string, std::vector<int>>> find_units(
    const config::Resolved& config, const Tree& tree, const std::vector<std::int64_t>& elems) {
  std::vector<shard::ModuleNode> nodes;
  nodes.reserve(tree.size());
  for (const auto& [name, class_name, parent, is_list, is_called, params] : tree) {
    nodes.push_back({name, class_name, parent, is_list, is_called, params});
  }
  std::vector<std::pair<std::string, std::vector<int>>> units;
  for (const shard::BoundarySpec& unit :
       shard::find_boundaries(nodes, elems, config.engine.shard)) {
    units.emplace_back(unit.name, unit.params);
  }
  return units;
}

models::TapeEvent::Kind kind_named(const std::string& name) {
  using Kind = models::TapeEvent::Kind;
  static const std::map<std::string, Kind> kinds = {{"take", Kind::take},
                                                    {"give", Kind::give},
                                                    {"begin_use", Kind::begin_use},
                                                    {"end_use", Kind::end_use},
                                                    {"gradient", Kind::gradient},
                                                    {"begin_backward", Kind::begin_backward},
                                                    {"end_backward", Kind::end_backward}};
  return kinds.at(name);
}

models::Paper make_paper(
    const std::vector<std::tuple<std::string, std::vector<std::int64_t>, bool>>& params,
    const std::vector<std::pair<std::string, std::vector<int>>>& units, const Events& events,
    std::int64_t buffer_bytes) {
  models::Paper paper;
  for (const auto& [name, sizes, trainable] : params) {
    paper.params.push_back({.name = name, .sizes = sizes, .trainable = trainable});
  }
  for (const auto& [name, indices] : units) paper.units.push_back({name, indices});
  for (const auto& [kind, index, bytes] : events) {
    paper.tape.push_back({kind_named(kind), index, bytes});
  }
  paper.buffer_bytes = buffer_bytes;
  return paper;
}

// Of the way that the configuration says, or of all ways.
std::vector<MemoryRow> estimate(const models::Paper& paper, const config::Resolved& config,
                                const tune::Machine& machine, int ranks, bool recompute, bool all) {
  const py::gil_scoped_release released;
  engine::Options options = config.engine;
  options.recompute.enabled = recompute;
  std::vector<engine::Options> ways = {options};
  if (all) ways = tune::all_ways(options);
  std::vector<MemoryRow> rows;
  for (const engine::Options& way : ways) {
    if (way.recompute.enabled != recompute) continue;
    MemoryRow row{.options = way};
    row.memory = tune::estimate_paper(paper, way, ranks, {.on_gpu = machine.on_gpu});
    row.lacks = tune::too_little(row.memory, ranks, machine);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

void bind_estimate(py::module_& module) {
  py::class_<models::Paper>(module, "Paper", "A model's parameters, units and memory on paper.")
      .def(py::init(&make_paper), py::arg("params"), py::arg("units"), py::arg("events"),
           py::arg("buffer_bytes"));
  py::class_<MemoryRow>(module, "MemoryRow", "How much memory one way to place a model takes.")
      .def_property_readonly(
          "device_bytes", [](const MemoryRow& row) { return row.memory.device_need(); },
          "Of each rank, with a reserve.")
      .def_property_readonly("peak_bytes", [](const MemoryRow& row) { return row.memory.peak(); })
      .def_property_readonly("host_bytes",
                             [](const MemoryRow& row) { return row.memory.host_need(); })
      .def_property_readonly("disk_bytes",
                             [](const MemoryRow& row) { return row.memory.disk.total(); })
      .def_property_readonly("stage", [](const MemoryRow& row) { return row.options.shard.stage; })
      .def_property_readonly("recompute",
                             [](const MemoryRow& row) { return row.options.recompute.enabled; })
      .def_property_readonly("fits", [](const MemoryRow& row) { return row.lacks.empty(); })
      .def_readonly("lacks", &MemoryRow::lacks)
      .def("as_dict", [](const MemoryRow& row) { return to_python(tune::to_json(row)); })
      .def("phases", &tune::phase_table, "Phase by phase, as text.");
  py::class_<tune::Machine>(module, "Machine", "What a machine has; see tune/machine.h.")
      .def(py::init<>())
      .def_readwrite("on_gpu", &tune::Machine::on_gpu)
      .def_readwrite("devices_per_host", &tune::Machine::devices_per_host)
      .def_readwrite("device_bytes", &tune::Machine::device_bytes)
      .def_readwrite("host_bytes", &tune::Machine::host_bytes)
      .def_readwrite("disk_bytes", &tune::Machine::disk_bytes);
  module.def("find_machine", &tune::find_machine, py::arg("name_or_file"));
  module.def("find_units", &find_units, py::arg("config"), py::arg("tree"), py::arg("elems"),
             "The units of a model: names, and the parameters of each.");
  module.def("estimate", &estimate, py::arg("paper"), py::arg("config"), py::arg("machine"),
             py::arg("ranks"), py::arg("recompute"), py::arg("all"));
  module.def("memory_table", &tune::memory_table, py::arg("rows"), py::arg("machine"));
}

}  // namespace capstan::python
