#include "capstan/python/bind_monitor.h"

#include <tuple>

#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "capstan/monitor/csv_files.h"
#include "capstan/python/bind.h"

namespace capstan::python {
namespace py = pybind11;

void bind_telling(py::class_<PyEngine>& type) {
  type.def(
      "tell_validation_loss",
      [](PyEngine& self, double loss) {
        self.inside().monitoring().validated(loss, self.engine().progress());
      },
      py::arg("loss"), py::call_guard<py::gil_scoped_release>());
}

void bind_monitor(py::module_& module) {
  py::class_<monitor::CsvFiles>(module, "CsvFiles",
                                "The monitor that writes a CSV file per figure.")
      .def(py::init<std::filesystem::path>(), py::arg("folder"))
      .def(
          "write",
          [](monitor::CsvFiles& self,
             const std::vector<std::tuple<std::string, double, std::int64_t>>& events) {
            std::vector<monitor::Event> list;
            for (const auto& [name, value, samples] : events)
              list.push_back({name, value, samples});
            self.write(list);
          },
          py::arg("events"), "Events are (name, value, samples).");
}

}  // namespace capstan::python
