#include "capstan/python/py_values.h"

#include <array>

#include "capstan/base/error.h"

namespace capstan::python {
namespace py = pybind11;

py::object to_python(const json::Value& value) {
  if (const bool* flag = value.boolean()) return py::bool_(*flag);
  if (const std::int64_t* integer = value.integer()) return py::int_(*integer);
  if (const double* real = value.real()) return py::float_(*real);
  if (const std::string* text = value.text()) return py::str(*text);
  if (const json::Array* array = value.array()) {
    py::list list;
    for (const json::Value& item : *array) list.append(to_python(item));
    return list;
  }
  if (const json::Object* object = value.object()) {
    py::dict dict;
    for (const json::Member& member : *object) {
      dict[py::str(member.key)] = to_python(member.value);
    }
    return dict;
  }
  return py::none();
}

optim::HyperParams to_hyper_params(const py::dict& group) {
  optim::HyperParams hyper;
  const auto take = [&group](const char* name, auto& field) {
    if (!group.contains(name) || group[name].is_none()) return;
    field = py::float_(py::object(group[name])).cast<double>();
  };
  const auto take_flag = [&group](const char* name, bool& field) {
    if (group.contains(name)) field = py::bool_(py::object(group[name]));
  };
  take("lr", hyper.lr);
  take("eps", hyper.eps);
  take("weight_decay", hyper.weight_decay);
  take("momentum", hyper.momentum);
  take("dampening", hyper.dampening);
  take("lr_decay", hyper.lr_decay);
  take("initial_accumulator_value", hyper.initial_accumulator);
  take("max_coeff", hyper.max_coeff);
  take("min_coeff", hyper.min_coeff);
  take_flag("bias_correction", hyper.bias_correction);
  take_flag("nesterov", hyper.nesterov);
  take_flag("eps_inside_sqrt", hyper.eps_inside_sqrt);
  if (group.contains("betas")) {
    const py::sequence betas(group["betas"]);
    hyper.beta1 = py::float_(py::object(betas[0])).cast<double>();
    hyper.beta2 = py::float_(py::object(betas[1])).cast<double>();
  }
  return hyper;
}

optim::Kind to_kind(const std::string& text) {
  using optim::Kind;
  constexpr std::array kKinds = {Kind::adam, Kind::adamw,   Kind::sgd,
                                 Kind::lion, Kind::adagrad, Kind::lamb};
  for (const Kind kind : kKinds) {
    if (name(kind) == text) return kind;
  }
  throw ConfigError({.what = "there is no optimizer '" + text + "'",
                     .where = "optimizer",
                     .fix = "use adam, adamw, sgd, lion, adagrad or lamb"});
}

}  // namespace capstan::python
