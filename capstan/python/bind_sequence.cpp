#include <memory>
#include <tuple>

#include <torch/csrc/utils/pybind.h>

#include "capstan/comm/group.h"
#include "capstan/python/bind.h"
#include "capstan/sequence_parallel/exchange.h"
#include "capstan/sequence_parallel/heads.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

using GroupPtr = std::shared_ptr<comm::Group>;

at::Tensor exchange(const at::Tensor& tensor, int split, int join, const GroupPtr& group) {
  return sequence_parallel::exchange(tensor, {.split = split, .join = join}, group);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> to_heads(const at::Tensor& query,
                                                        const at::Tensor& key,
                                                        const at::Tensor& value,
                                                        const GroupPtr& group) {
  const sequence_parallel::Qkv mine = sequence_parallel::to_heads({query, key, value}, group);
  return {mine.query, mine.key, mine.value};
}

}  // namespace

void bind_sequence(py::module_& module) {
  module.def("exchange", &exchange, py::arg("tensor"), py::arg("split"), py::arg("join"),
             py::arg("group"), py::call_guard<py::gil_scoped_release>(),
             "Cuts a tensor along one dimension and puts the ranks' parts together along another; "
             "differentiable.");
  module.def("to_heads", &to_heads, py::arg("query"), py::arg("key"), py::arg("value"),
             py::arg("group"), py::call_guard<py::gil_scoped_release>(),
             "From parts of the sequence to parts of the heads, [batch, heads, sequence, width]; "
             "differentiable.");
  module.def(
      "share_heads",
      [](int query_heads, int key_heads, int ranks) {
        const auto share = sequence_parallel::share_heads(query_heads, key_heads, ranks);
        return std::tuple(share.query_heads, share.key_heads, share.copies);
      },
      py::arg("query_heads"), py::arg("key_heads"), py::arg("ranks"),
      "(query heads of a rank, key heads of a rank, ranks with the same key head); raises "
      "ConfigError where they cannot be shared equally.");
}

}  // namespace capstan::python
