#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "capstan/base/rank_env.h"
#include "capstan/comm/group.h"
#include "capstan/comm/side_channel.h"
#include "capstan/python/bind.h"
#include "capstan/python/py_values.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

using StorePtr = std::optional<c10::intrusive_ptr<c10d::Store>>;

// Through the store, ranks learn of a peer that fails before the timeout is over.
std::shared_ptr<comm::Group> make_group(const c10::intrusive_ptr<c10d::Backend>& backend,
                                        const std::string& name, std::optional<double> timeout_s,
                                        const StorePtr& store, bool ordered,
                                        const std::shared_ptr<comm::Group>& beside) {
  comm::GroupOptions options{.name = name};
  if (timeout_s) {
    const std::chrono::duration<double> timeout(*timeout_s);
    options.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  }
  options.reduction = ordered ? comm::Reduction::ordered : comm::Reduction::native;
  if (store.has_value()) options.side_channel = comm::make_store_channel(*store, "capstan/" + name);
  if (beside != nullptr) options.recorder = beside->recorder();
  return {new comm::Group(backend, std::move(options)), Drop()};
}

}  // namespace

void bind_group(py::module_& module) {
  py::class_<RankEnv>(module, "RankEnv", "Who this process is, by the variables of its launcher.")
      .def_readonly("rank", &RankEnv::rank)
      .def_readonly("world_size", &RankEnv::world_size)
      .def_readonly("local_rank", &RankEnv::local_rank)
      .def_readonly("master_addr", &RankEnv::master_addr)
      .def_readonly("master_port", &RankEnv::master_port)
      .def_readonly("launcher", &RankEnv::launcher);
  module.def(
      "rank_env", [] { return read_rank_env(process_env()); },
      "What the environment says now; raises ConfigError if it makes no sense.");
  py::class_<comm::Group, std::shared_ptr<comm::Group>>(
      module, "Group", "Ranks that talk over a backend of torch.distributed.")
      .def(py::init(&make_group), py::arg("backend"), py::arg("name") = "world",
           py::arg("timeout_s") = py::none(), py::arg("store") = py::none(),
           py::arg("ordered") = true, py::arg("beside") = nullptr)
      .def_property_readonly("rank", &comm::Group::rank)
      .def_property_readonly("size", &comm::Group::size)
      .def_property_readonly("failed", &comm::Group::failed)
      .def(
          "any",
          [](comm::Group& self, const at::Tensor& flag) {
            const at::Tensor sum = flag.to(at::kLong).reshape({1});
            self.all_reduce(sum, "whether any rank does").wait();
            return sum.item<std::int64_t>() > 0;
          },
          py::arg("flag"), py::call_guard<py::gil_scoped_release>(),
          "Collective: whether a tensor of one element is true on some rank.")
      .def("recent_operations", &comm::Group::recent_operations)
      .def("abort", &comm::Group::abort, py::arg("reason"),
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace capstan::python
