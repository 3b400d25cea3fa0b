#include <optional>

#include <pybind11/stl.h>

#include "capstan/config/apply.h"
#include "capstan/config/resolve.h"
#include "capstan/json/reader.h"
#include "capstan/python/bind.h"
#include "capstan/schedule/curriculum.h"
#include "capstan/schedule/layer_drop.h"
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

// The section as it stands in a configuration, enabled or not.
schedule::Curriculum parse_curriculum(const std::string& text) {
  const std::string document = "{\"train_batch_size\": 1, \"curriculum_learning\": " + text + "}";
  const config::Resolved resolved =
      config::resolve(json::read_document(document, "curriculum"), {.world_size = 1});
  schedule::Curriculum curriculum = config::growth_in(resolved.table, "curriculum_learning");
  schedule::check(curriculum, "the curriculum");
  return curriculum;
}

void bind_curriculum(py::module_& module) {
  using schedule::Curriculum;
  py::class_<Curriculum>(module, "Curriculum", "How difficulty grows from step to step.")
      .def(py::init(&parse_curriculum), py::arg("text"))
      .def_readonly("min", &Curriculum::min)
      .def_readonly("max", &Curriculum::max)
      .def_property_readonly(
          "custom", [](const Curriculum& c) { return c.growth == schedule::Growth::custom; },
          "Whether a function of the caller's says how difficulty grows.")
      .def_property_readonly("warning", [](const Curriculum& c) { return schedule::warning(c); })
      .def("difficulty", &schedule::difficulty_at, py::arg("step"),
           "The difficulty of a step that is counted from 1.");
  using schedule::LayerDrop;
  py::class_<LayerDrop>(module, "LayerDrop", "Progressive layer drop.")
      .def(py::init([](double theta, double gamma) {
             LayerDrop drop{.theta = theta, .gamma = gamma};
             schedule::check(drop);
             return drop;
           }),
           py::arg("theta"), py::arg("gamma"))
      .def_readonly("theta", &LayerDrop::theta)
      .def_readonly("gamma", &LayerDrop::gamma)
      .def("at", &schedule::theta_at, py::arg("t"), "How often the last layer is kept at time t.")
      .def("of_step", &schedule::theta_of_step, py::arg("step"),
           "The same for a step that is counted from 1.");
}

}  // namespace

void bind_schedule(py::module_& module) {
  bind_curriculum(module);
  py::class_<Curve>(module, "ScheduleOptions", "A learning-rate schedule's parameters.")
      .def(py::init(&parse), py::arg("text"), py::arg("groups"))
      .def("rates", &rates, py::arg("index"), py::arg("base_lr"), py::arg("group") = 0,
           "(learning rate, momentum or None) at an index that starts from 0.");
}

}  // namespace capstan::python
