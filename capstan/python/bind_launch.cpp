#include <utility>

#include <pybind11/stl.h>

#include "capstan/launch/pool.h"
#include "capstan/python/bind.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

using Hosts = std::vector<std::pair<std::string, std::vector<std::string>>>;  // name, slots

Hosts hosts_of(const launch::Pool& pool) {
  Hosts hosts;
  for (const launch::Host& host : pool) hosts.emplace_back(host.name, host.slots);
  return hosts;
}

}  // namespace

void bind_launch(py::module_& module) {
  module.def(
      "parse_hostfile",
      [](const std::string& text, const std::string& file) {
        return hosts_of(launch::parse_hostfile(text, file));
      },
      py::arg("text"), py::arg("file"), "(host, slots) in the order of a hostfile.");
  module.def(
      "filter_hosts",
      [](const Hosts& hosts, const std::string& filter, bool keep) {
        launch::Pool pool;
        for (const auto& [name, slots] : hosts) pool.push_back({name, slots});
        return hosts_of(launch::filter_hosts(pool, filter, keep));
      },
      py::arg("pool"), py::arg("filter"), py::arg("keep"),
      "What --include (keep) or --exclude leaves of (host, slots); perhaps nothing.");
}

}  // namespace capstan::python
