#include <optional>

#include <pybind11/stl.h>

#include "capstan/config/apply.h"
#include "capstan/config/resolve.h"
#include "capstan/json/reader.h"
#include "capstan/python/bind.h"
#include "capstan/schedule/schedule.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

// In a struct of its own: pybind11 would take the variant apart.
struct Curve {
  schedule::Options options;
};

// {"type": ..., "params": {...}} as it stands in a configuration, checked for this many groups.
Curve parse(const std::string& text, int groups) {
  const std::string document = "{\"train_batch_size\": 1, \"scheduler\": " + text + "}";
  const config::Resolved resolved =
      config::resolve(json::read_document(document, "scheduler"), {.world_size = 1});
  schedule::Options options = config::to_schedule(resolved.table).value_or(schedule::Constant{});
  schedule::check(options, groups);
  return {options};
}

py::tuple rates(const Curve& curve, std::int64_t index, double base_lr, int group) {
  const schedule::Rates at = schedule::rates_at(curve.options, index, base_lr, group);
  return py::make_tuple(at.lr, at.momentum);
}

}  // namespace

void bind_schedule(py::module_& module) {
  py::class_<Curve>(module, "ScheduleOptions", "A learning-rate schedule's parameters.")
      .def(py::init(&parse), py::arg("text"), py::arg("groups"))
      .def("rates", &rates, py::arg("index"), py::arg("base_lr"), py::arg("group") = 0,
           "(learning rate, momentum or None) at an index that starts from 0.");
}

}  // namespace capstan::python
