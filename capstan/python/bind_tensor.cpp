#include <memory>
#include <optional>

#include <torch/csrc/utils/pybind.h>

#include "capstan/comm/group.h"
#include "capstan/python/bind.h"
#include "capstan/tensor_parallel/linear.h"
#include "capstan/tensor_parallel/operators.h"
#include "capstan/tensor_parallel/vocab_embedding.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

using GroupPtr = std::shared_ptr<comm::Group>;
using tensor_parallel::Region;

// Rows are cut as evenly as can be.
at::Tensor vocab_embedding(const at::Tensor& ids, const at::Tensor& weight, std::int64_t rows,
                           std::optional<std::int64_t> padding, const GroupPtr& group) {
  const Region region{group.get(), {}};
  const auto cut = tensor_parallel::cut_vocabulary(rows, rows, region.place());
  return tensor_parallel::vocab_embedding(region, ids, weight, cut, padding);
}

}  // namespace

void bind_tensor(py::module_& module) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  module.def(
      "column_linear",
      [](const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
         const GroupPtr& group) {
        return tensor_parallel::column_linear({group.get(), {}}, x, weight,
                                              bias.value_or(at::Tensor()));
      },
      py::arg("x"), py::arg("weight"), py::arg("bias"), py::arg("group"), released,
      "This rank's part of the output, from its rows of the weight; x is whole on every rank.");
  module.def(
      "row_linear",
      [](const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
         const GroupPtr& group) {
        return tensor_parallel::row_linear({group.get(), {}}, x, weight,
                                           bias.value_or(at::Tensor()));
      },
      py::arg("x"), py::arg("weight"), py::arg("bias"), py::arg("group"), released,
      "The whole output on every rank, from parts of x and columns of the weight; the bias is "
      "whole and added once.");
  module.def("vocab_embedding", &vocab_embedding, py::arg("ids"), py::arg("weight"),
             py::arg("rows"), py::arg("padding"), py::arg("group"), released,
             "Rows of an embedding of so many, of which this rank has its part.");
  const auto bind = [&](const char* name, auto function, const char* says) {
    module.def(
        name,
        [function](const at::Tensor& x, const GroupPtr& group) { return function(*group, x); },
        py::arg("x"), py::arg("group"), released, says);
  };
  bind("copy_in", &tensor_parallel::copy_in, "The same; its gradient is summed over the ranks.");
  bind("gather_last", &tensor_parallel::gather_last,
       "All ranks' parts of the last dimension; differentiable.");
  bind("scatter_last", &tensor_parallel::scatter_last,
       "This rank's part of the last dimension; differentiable.");
}

}  // namespace capstan::python
