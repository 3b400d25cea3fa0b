#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <pybind11/stl.h>

#include "capstan/comm/group.h"
#include "capstan/profile/module_costs.h"
#include "capstan/profile/recorder.h"
#include "capstan/python/bind.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

profile::Kinds kinds_named(const std::vector<std::string>& names) {
  profile::Kinds kinds;
  for (const std::string& name : names) {
    const std::optional<profile::Kind> kind = profile::kind_named(name);
    if (!kind.has_value()) throw py::value_error("no kind of span: " + name);
    kinds = kinds | profile::Kinds{*kind};
  }
  return kinds;
}

// As long as it lives, a group's recorder works; see profile/recorder.h.
class SpanReader {
 public:
  SpanReader(const comm::Group& group, const std::vector<std::string>& kinds)
      : recorder_(group.recorder()), reader_(recorder_, kinds_named(kinds)) {}

  std::vector<profile::Record> take(bool settle) {
    if (settle) recorder_->settle();
    return reader_.take();
  }

 private:
  std::shared_ptr<profile::Recorder> recorder_;
  profile::Reader reader_;
};

// (depth, name, class, parameters, flops of forward, backward and recomputation, seconds likewise)
using CostRow =
    std::tuple<int, std::string, std::string, std::int64_t, profile::PerPart, profile::PerPart>;

std::vector<profile::ModuleCost> modules_of(const std::vector<CostRow>& rows) {
  std::vector<profile::ModuleCost> modules;
  for (const auto& [depth, name, kind, parameters, flops, times] : rows) {
    modules.push_back({depth, name, kind, parameters, flops, times});
  }
  return modules;
}

void bind_costs(py::module_& module) {
  using profile::CostFacts;
  py::class_<CostFacts>(module, "CostFacts", "What is known of the run that a profile is of.")
      .def(py::init<>())
      .def_readwrite("step", &CostFacts::step)
      .def_readwrite("world_size", &CostFacts::world_size)
      .def_readwrite("data_ranks", &CostFacts::data_ranks)
      .def_readwrite("model_ranks", &CostFacts::model_ranks)
      .def_readwrite("micro_batch", &CostFacts::micro_batch)
      .def_readwrite("micro_batches", &CostFacts::micro_batches)
      .def_readwrite("forward_s", &CostFacts::forward_s)
      .def_readwrite("backward_s", &CostFacts::backward_s)
      .def_readwrite("update_s", &CostFacts::update_s)
      .def_readwrite("step_s", &CostFacts::step_s)
      .def_readwrite("recompute_factor", &CostFacts::recompute_factor);
  module.def(
      "module_table",
      [](const std::vector<CostRow>& rows, int depth) {
        return profile::module_table(modules_of(rows), depth);
      },
      py::arg("rows"), py::arg("depth"), "A line per module.");
  module.def(
      "top_modules",
      [](const std::vector<CostRow>& rows, int depth, int top) {
        return profile::top_modules(modules_of(rows), {.depth = depth, .top_modules = top});
      },
      py::arg("rows"), py::arg("depth"), py::arg("top"),
      "The classes of modules with the most parameters, operations and time at each depth.");
  module.def(
      "costs_report",
      [](const std::vector<CostRow>& rows, const CostFacts& facts, int depth, int top,
         bool detailed) {
        return profile::costs_report(modules_of(rows), facts, {depth, top, detailed});
      },
      py::arg("rows"), py::arg("facts"), py::arg("depth"), py::arg("top"), py::arg("detailed"));
}

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void bind_profile(py::module_& module) {
  bind_costs(module);
  py::class_<profile::Record>(module, "Span", "Work that is over: what, for whom, how long.")
      .def_property_readonly("name",
                             [](const profile::Record& self) { return std::string(self.name); })
      .def_readonly("unit", &profile::Record::unit)
      .def_property_readonly(
          "kind",
          [](const profile::Record& self) { return std::string(profile::to_string(self.kind)); })
      .def_readonly("bytes", &profile::Record::bytes)
      .def_property_readonly(
          "host_seconds",
          [](const profile::Record& self) { return seconds(self.host_end - self.host_begin); })
      .def_property_readonly("device_seconds", [](const profile::Record& self) {
        return seconds(self.device.length);
      });
  py::class_<SpanReader>(module, "SpanReader", "Records what a group and its engines do.")
      .def(py::init<const comm::Group&, const std::vector<std::string>&>(), py::arg("group"),
           py::arg("kinds"))
      .def("take", &SpanReader::take, py::arg("settle") = false,
           py::call_guard<py::gil_scoped_release>(),
           "The spans that have ended since the last call. settle: waits for the device first.");
}

}  // namespace capstan::python
