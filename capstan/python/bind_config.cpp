#include <memory>
#include <optional>

#include <pybind11/stl.h>

#include "capstan/config/explain.h"
#include "capstan/config/resolve.h"
#include "capstan/json/reader.h"
#include "capstan/python/bind.h"
#include "capstan/python/py_values.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

std::shared_ptr<config::Resolved> resolve(const std::string& text, const std::string& source,
                                          std::optional<int> world_size,
                                          std::optional<std::int64_t> hidden_size) {
  const json::Document document = json::read_document(text, source);
  return std::make_shared<config::Resolved>(
      config::resolve(document, {.world_size = world_size, .hidden_size = hidden_size}));
}

py::object value_of(const config::Resolved& resolved, const std::string& path) {
  const config::Entry* const entry = resolved.table.find(path);
  if (entry == nullptr) throw py::key_error("no key '" + path + "' in the configuration");
  return to_python(entry->value);
}

py::list warnings_of(const config::Resolved& resolved) {
  py::list list;
  for (const ErrorInfo& info : resolved.warnings) {
    list.append(py::make_tuple(info.what, info.where, info.fix));
  }
  return list;
}

}  // namespace

void bind_config(py::module_& module) {
  py::class_<config::Resolved, std::shared_ptr<config::Resolved>>(
      module, "Config", "A checked configuration: every value after defaults and derivation.")
      .def("value", &value_of, py::arg("path"), "The value at a dotted path.")
      .def(
          "given",
          [](const config::Resolved& resolved, const std::string& path) {
            return resolved.table.given(path);
          },
          py::arg("path"), "Whether the document says something about this key.")
      .def("explain", &config::explain, "Every value with its origin, as text.")
      .def_property_readonly("warnings", &warnings_of)
      .def_readonly("world_size", &config::Resolved::world_size);
  module.def("resolve_config", &resolve, py::arg("text"), py::arg("source"),
             py::arg("world_size") = py::none(), py::arg("hidden_size") = py::none(),
             "Checks a configuration (JSON or Hjson text). Raises ConfigError with all problems.");
  module.def(
      "read_config_text",
      [](const std::string& text, const std::string& source) {
        return to_python(json::read(text, source));
      },
      py::arg("text"), py::arg("source"), "JSON or Hjson text as plain Python values.");
  module.def(
      "read_config_argument",
      [](const std::string& argument) {
        const json::Document document = json::read_argument(argument);
        if (!document.problems.empty()) {
          throw ConfigError(config::join_problems(document.problems, document.source));
        }
        return to_python(document.root);
      },
      py::arg("argument"), "A file's name, JSON text, or that text in base64, as Python values.");
}

}  // namespace capstan::python
