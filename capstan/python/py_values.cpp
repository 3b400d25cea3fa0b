#include "capstan/python/py_values.h"

#include <array>
#include <limits>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/json/reader.h"

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

namespace {

json::Value integer_or_real(const py::handle& object) {
  int overflow = 0;
  const long long integer = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (overflow == 0) return json::Value(std::int64_t{integer});
  const double real = PyLong_AsDouble(object.ptr());
  if (PyErr_Occurred() == nullptr) return json::Value(real);
  PyErr_Clear();  // beyond a double as well
  const double infinity = std::numeric_limits<double>::infinity();
  return json::Value(overflow > 0 ? infinity : -infinity);
}

json::Value to_json(const py::handle& object, const std::string& where, int depth) {
  if (depth > json::kMaxDepth) {
    throw ConfigError({.what = fmt::format("nested deeper than {} levels", json::kMaxDepth),
                       .where = where,
                       .fix = "flatten it, and check whether it contains itself"});
  }
  if (object.is_none()) return {};
  if (py::isinstance<py::bool_>(object)) return json::Value(object.cast<bool>());
  if (PyLong_Check(object.ptr())) return integer_or_real(object);
  if (PyFloat_Check(object.ptr())) return json::Value(PyFloat_AsDouble(object.ptr()));
  if (PyUnicode_Check(object.ptr())) return json::Value(object.cast<std::string>());
  if (py::isinstance<py::dict>(object)) {
    json::Value value{json::Object{}};
    for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(object)) {
      value.add(py::str(key), to_json(item, where, depth + 1));
    }
    return value;
  }
  if (py::isinstance<py::list>(object) || py::isinstance<py::tuple>(object)) {
    json::Array items;
    for (const py::handle item : object) items.push_back(to_json(item, where, depth + 1));
    return json::Value(std::move(items));
  }
  if (py::hasattr(object, "item") && py::hasattr(object, "dtype")) {
    return to_json(object.attr("item")(), where, depth + 1);
  }
  return json::Value(py::str(object).cast<std::string>());
}

}  // namespace

json::Value to_json(const py::handle& object, const std::string& where) {
  return to_json(object, where, 0);
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
