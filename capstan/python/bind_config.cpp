#include <memory>

#include <fmt/format.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "capstan/config/explain.h"
#include "capstan/config/lone_section.h"
#include "capstan/config/resolve.h"
#include "capstan/json/reader.h"
#include "capstan/python/bind.h"
#include "capstan/python/bind_answers.h"
#include "capstan/python/py_values.h"
#include "capstan/schedule/curriculum.h"
#include "capstan/schedule/layer_drop.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

// A dict, or what a launcher hands over: a file's name, JSON text, or that text in base64.
json::Document read_config(const py::object& given) {
  if (py::isinstance<json::Document>(given)) return given.cast<json::Document>();
  if (!py::isinstance<py::dict>(given)) return json::read_argument(py::str(given));
  return {.root = to_json(given, "the configuration"), .source = "the configuration"};
}

// One number for all groups is just that number.
py::object value_of(const config::Entry& entry) {
  const json::Array* items = entry.value.array();
  const bool one = entry.key->type == config::Type::number_or_list && items && items->size() == 1;
  return to_python(one ? items->front() : entry.value);
}

py::object value_at(const config::Resolved& resolved, const std::string& path) {
  const config::Entry* const entry = resolved.table.find(path);
  if (entry == nullptr) throw py::key_error("no key '" + path + "' in the configuration");
  return value_of(*entry);
}

// Every key directly in a section.
py::dict section_of(const config::Resolved& resolved, const std::string& path) {
  py::dict values;
  for (const config::Entry& entry : resolved.table.entries()) {
    const std::size_t dot = entry.path.rfind('.');
    if (dot == std::string::npos || std::string_view(entry.path).substr(0, dot) != path) continue;
    values[py::str(entry.path.substr(dot + 1))] = value_of(entry);
  }
  return values;
}

py::list warnings_of(const config::Resolved& resolved) {
  py::list list;
  for (const ErrorInfo& info : resolved.warnings) {
    list.append(py::make_tuple(info.what, info.where, info.fix));
  }
  return list;
}

// {path: (value, why)}
void read_overrides(const py::dict& given, config::Context& context) {
  for (const auto& [path, pair] : given) {
    const auto both = py::reinterpret_borrow<py::tuple>(pair);
    context.overrides[py::str(path)] = {to_json(both[0], py::str(path)),
                                        both[1].cast<std::string>()};
  }
}

// {section: (what they are, {name: (parameters, those that are required)})}
void read_other_types(const py::dict& given, config::Context& context) {
  using Names = std::vector<std::string>;
  for (const auto& [section, pair] : given) {
    const auto [in_words, classes] =
        pair.cast<std::pair<std::string, std::map<std::string, std::pair<Names, Names>>>>();
    config::OtherTypes& types = context.other_types[py::str(section)];
    types.in_words = in_words;
    for (const auto& [name, params] : classes) {
      types.classes[name] = {.params = params.first, .required = params.second};
    }
  }
}

std::shared_ptr<config::Resolved> resolve(const json::Document& document, py::kwargs facts) {
  config::Context context;
  const auto take = [&facts](const char* name, auto& field) {
    if (!facts.contains(name)) return;
    const py::object value = facts.attr("pop")(name);
    if (!value.is_none()) field = value.cast<std::decay_t<decltype(field)>>();
  };
  py::dict overrides;
  py::dict other_types;
  take("world_size", context.world_size);
  take("hidden_size", context.hidden_size);
  take("stages", context.stages);
  take("door", context.door);
  take("trains", context.trains);
  take("reads_only", context.reads_only);
  take("lenient", context.lenient);
  take("overrides", overrides);
  take("other_types", other_types);
  if (!facts.empty())
    throw py::type_error(fmt::format("no such facts: {}", py::str(facts).cast<std::string>()));
  read_overrides(overrides, context);
  read_other_types(other_types, context);
  auto resolved = std::make_shared<config::Resolved>(config::resolve(document, context));
  if (context.trains && resolved->curriculum) {
    schedule::check(*resolved->curriculum, "curriculum_learning");
  }
  if (context.trains && resolved->layer_drop) schedule::check(*resolved->layer_drop);
  return resolved;
}

// The defaults of a section's keys, for the `type` beside it where they depend on one.
py::dict defaults_of(const std::string& path, const std::string& type) {
  py::dict values;
  for (const config::Section* section : config::schema().at(path, type)) {
    for (const config::Key& key : section->keys) {
      values[py::str(key.name)] =
          value_of({.path = key.name, .section = section, .key = &key, .value = key.standard});
    }
  }
  return values;
}

py::dict lone_defaults_of(const std::string& section, std::int64_t stage) {
  py::dict values;
  for (const auto& [key, value] : config::lone_defaults(section, stage)) {
    values[py::str(key)] = to_python(value);
  }
  return values;
}

std::vector<std::string> section_paths() {
  std::vector<std::string> paths;
  for (const config::Section& section : config::schema().sections()) paths.push_back(section.path);
  return paths;
}

void bind_view(py::module_& module) {
  ConfigClass config(module, "Config",
                     "A checked configuration: every value after defaults and derivation.");
  bind_answers(config);
  config.def("value", &value_at, py::arg("path"), "The value at a dotted path.")
      .def("section", &section_of, py::arg("path"), "The values directly in a section, by key.")
      .def(
          "names_below",
          [](const config::Resolved& resolved, const std::string& path) {
            return resolved.table.names_below(path);
          },
          py::arg("path"), "Names that the document has made up, such as those of groups.")
      .def(
          "given",
          [](const config::Resolved& resolved, const std::string& path) {
            return resolved.table.given(path);
          },
          py::arg("path"), "Whether the document says something about this key.")
      .def(
          "has_section",
          [](const config::Resolved& resolved, const std::string& path) {
            return resolved.table.has_section(path);
          },
          py::arg("path"), "Whether the document has this section.")
      .def("explain", &config::explain, "Every value with its origin, as text.")
      .def_property_readonly("warnings", &warnings_of)
      .def_readonly("curriculum", &config::Resolved::curriculum,
                    "Of the section curriculum_learning, if it is enabled.")
      .def_readonly("layer_drop", &config::Resolved::layer_drop,
                    "Of the section progressive_layer_drop, if it is enabled.")
      .def_readonly("world_size", &config::Resolved::world_size);
}

}  // namespace

void bind_config(py::module_& module) {
  py::enum_<config::Door>(module, "Door", "Which package acts on a configuration.")
      .value("CAPSTAN", config::Door::capstan_package)
      .value("DEEPSPEED", config::Door::deepspeed_package);
  py::class_<json::Document>(module, "ConfigDocument", "A configuration as it was written.")
      .def_property_readonly(
          "root", [](const json::Document& document) { return to_python(document.root); },
          "A copy as plain Python values.")
      .def_readonly("source", &json::Document::source);
  bind_view(module);
  bind_loss_scale(module);
  module.def("config_defaults", &defaults_of, py::arg("section"), py::arg("type") = "",
             "The default of every key of a section.");
  module.def("lone_defaults", &lone_defaults_of, py::arg("section"), py::arg("stage") = 0,
             "Where DeepSpeed's object of this section alone has other defaults.");
  module.def("config_sections", &section_paths, "The path of every section.");
  module.def("read_config", &read_config, py::arg("given"),
             "A dict, a file's name, JSON text, or that text in base64, as a ConfigDocument.");
  module.def(
      "resolve_config", &resolve, py::arg("document"),
      "Checks a configuration against what the caller knows: world_size, hidden_size, stages, "
      "door, "
      "trains, reads_only, lenient, overrides, other_types. Raises ConfigError with all problems.");
}

}  // namespace capstan::python
