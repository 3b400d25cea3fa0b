#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "capstan/base/error.h"
#include "capstan/engine/columns.h"
#include "capstan/engine/param_groups.h"
#include "capstan/optim/lamb.h"
#include "capstan/optim/update.h"
#include "capstan/python/bind.h"
#include "capstan/python/py_values.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

struct TensorUpdate {
  at::Tensor param;
  at::Tensor grad;
  std::vector<at::Tensor> states;
};

optim::Span span_of(const TensorUpdate& tensors) {
  optim::Span span{.master = engine::column(tensors.param, 0),
                   .grad = engine::const_column(tensors.grad, 0),
                   .elems = tensors.param.numel()};
  for (std::size_t i = 0; i < tensors.states.size(); ++i) {
    span.states[i] = engine::column(tensors.states[i], 0);
  }
  return span;
}

void check_tensor(const at::Tensor& tensor) {
  if (tensor.is_cpu() && tensor.is_contiguous() && tensor.is_floating_point()) return;
  throw ConfigError({.what = "the tensor is not contiguous floating-point data in CPU memory",
                     .where = "optimizer step",
                     .fix = "train through an engine, or use torch.optim for such parameters"});
}

// One step of one tensor, outside of any engine.
void update_tensor(const std::string& kind_name, const py::dict& group, std::int64_t step,
                   const TensorUpdate& tensors) {
  const optim::Kind kind = to_kind(kind_name);
  const optim::HyperParams hyper = to_hyper_params(group);
  const optim::StepScalars scalars{.lr = hyper.lr, .step = step};
  check_tensor(tensors.param);
  check_tensor(tensors.grad);
  const py::gil_scoped_release released;
  optim::WorkerPool workers(std::max(1, at::get_num_threads()));
  const optim::CpuRun run{workers};
  const optim::Span span = span_of(tensors);
  if (kind != optim::Kind::lamb) {
    optim::update(kind, hyper, scalars, span, run);
    return;
  }
  const optim::LambSums sums = optim::lamb_prepare(hyper, scalars, span, run);
  optim::lamb_apply(hyper, scalars, optim::lamb_trust_ratio(hyper, sums), span, run);
}

}  // namespace

void bind_optim(py::module_& module) {
  module.def(
      "update_tensor",
      [](const std::string& kind, const py::dict& group, std::int64_t step, at::Tensor param,
         at::Tensor grad, std::vector<at::Tensor> states) {
        update_tensor(kind, group, step, {std::move(param), std::move(grad), std::move(states)});
      },
      py::arg("kind"), py::arg("group"), py::arg("step"), py::arg("param"), py::arg("grad"),
      py::arg("states"), "One optimizer step of one CPU tensor in place.");
  module.def(
      "groups_of",
      [](const std::vector<std::vector<std::string>>& patterns,
         const std::vector<std::string>& names) {
        std::vector<optim::Group> groups;
        for (const auto& each : patterns) groups.push_back({.patterns = each});
        std::vector<int> found;
        for (const std::string& name : names) found.push_back(engine::group_of(groups, name));
        return found;
      },
      py::arg("patterns"), py::arg("names"),
      "For each name the first group with a pattern for it, or -1.");
  module.def(
      "state_names",
      [](const std::string& kind, const py::dict& group) {
        const auto names = optim::state_names(to_kind(kind), to_hyper_params(group));
        return std::vector<std::string>(names.begin(), names.end());
      },
      py::arg("kind"), py::arg("group"), "The state tensors that an optimizer keeps.");
}

}  // namespace capstan::python
