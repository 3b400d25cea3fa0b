#include "capstan/python/py_optimizer.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "capstan/engine/torch_updater.h"
#include "capstan/python/py_values.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

// Calls of checkpoints into an optimizer of Python's.
engine::StateAccess state_access(const std::shared_ptr<py::object>& optimizer) {
  using Tensors = std::vector<std::pair<std::string, at::Tensor>>;
  engine::StateAccess access;
  access.kind = optimizer->attr("kind").cast<std::string>();
  access.tensors = [optimizer](std::size_t piece) {
    const py::gil_scoped_acquire gil;
    return optimizer->attr("tensors")(piece).cast<Tensors>();
  };
  access.scalars = [optimizer] {
    const py::gil_scoped_acquire gil;
    return optimizer->attr("scalars")().cast<engine::StateAccess::Scalars>();
  };
  access.make = [optimizer](const std::vector<std::string>& names,
                            const engine::StateAccess::Scalars& scalars) {
    const py::gil_scoped_acquire gil;
    optimizer->attr("make")(names, scalars);
  };
  return access;
}

}  // namespace

std::shared_ptr<py::object> shared_object(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

PyOptimizer read_optimizer(const py::object& given) {
  PyOptimizer optimizer{.make_step = py::none()};
  if (!py::isinstance<py::tuple>(given)) {
    optimizer.make_step = given;
    return optimizer;
  }
  const auto pair = py::tuple(given);
  optimizer.kind = pair[0].cast<std::string>();
  for (const py::handle item : pair[1]) {
    const auto group = py::reinterpret_borrow<py::tuple>(item);
    optimizer.groups.emplace_back(to_hyper_params(group[0].cast<py::dict>()),
                                  group[1].cast<std::vector<std::string>>());
  }
  return optimizer;
}

optim::Options kernel_options(const PyOptimizer& optimizer, optim::Kind kind) {
  optim::Options options{.kind = kind};
  if (!optimizer.groups.empty()) options.hyper = optimizer.groups.front().first;
  options.hyper.lr = 0;
  options.hyper.weight_decay = 0;
  for (const auto& [hyper, names] : optimizer.groups) options.groups.push_back({names, hyper});
  return options;
}

std::unique_ptr<engine::Updater> python_updater(const std::shared_ptr<py::object>& make_step,
                                                shard::ShardedModel& sharded) {
  std::shared_ptr<py::object> optimizer;
  const auto factory = [&](const std::vector<engine::ParamPiece>& pieces) -> engine::StepFunction {
    const py::gil_scoped_acquire gil;
    py::list list;
    for (const engine::ParamPiece& piece : pieces) {
      list.append(py::make_tuple(piece.param, piece.values, piece.begin));
    }
    optimizer = shared_object((*make_step)(list));
    return [optimizer](const engine::UpdateScalars&) {
      const py::gil_scoped_acquire gil_in_step;
      optimizer->attr("step")();
    };
  };
  auto updater = std::make_unique<engine::PieceUpdater>(factory, sharded);
  const py::gil_scoped_acquire gil;
  updater->set_state_access(state_access(optimizer));
  return updater;
}

}  // namespace capstan::python
