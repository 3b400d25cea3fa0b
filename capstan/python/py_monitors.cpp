#include "capstan/python/py_monitors.h"

#include <utility>
#include <vector>

#include "capstan/base/error.h"
#include "capstan/python/py_optimizer.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

class PythonSink final : public monitor::Sink {
 public:
  explicit PythonSink(py::object write) : write_(shared_object(std::move(write))) {}

  void write(const std::vector<monitor::Event>& events) override {
    const py::gil_scoped_acquire gil;
    py::list list;
    for (const monitor::Event& event : events) {
      list.append(py::make_tuple(event.name, event.value, event.samples));
    }
    try {
      (*write_)(list);
    } catch (const py::error_already_set& error) {
      const std::string where = py::str(write_->attr("__qualname__"));
      throw IoError({.what = error.what(), .where = where, .fix = ""});
    }
  }

 private:
  std::shared_ptr<py::object> write_;
};

engine::Monitors made_by(const py::object& make) {
  engine::Monitors monitors;
  try {
    const py::object writers = make();
    monitors.here = !writers.is_none();
    if (!monitors.here) return monitors;
    for (const py::handle& write : writers) {
      monitors.sinks.push_back(
          std::make_unique<PythonSink>(py::reinterpret_borrow<py::object>(write)));
    }
  } catch (py::error_already_set& error) {
    const py::module_ errors = py::module_::import("capstan.errors");
    if (!error.matches(errors.attr("Error"))) {
      throw ConfigError({.what = error.what(), .where = "the monitors", .fix = ""});
    }
    const py::object raised = error.value();
    const ErrorInfo info{.what = py::str(raised.attr("what")),
                         .where = py::str(raised.attr("where")),
                         .fix = py::str(raised.attr("fix"))};
    if (error.matches(errors.attr("IoError"))) throw IoError(info);
    throw ConfigError(info);
  }
  return monitors;
}

}  // namespace

engine::MonitorMaker monitor_maker(std::shared_ptr<py::object> make) {
  return [make = std::move(make)] {
    const py::gil_scoped_acquire gil;
    return made_by(*make);
  };
}

}  // namespace capstan::python
