#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <pybind11/stl.h>

#include "capstan/comm/group.h"
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

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void bind_profile(py::module_& module) {
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
