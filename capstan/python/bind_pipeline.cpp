#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "capstan/base/error.h"
#include "capstan/config/option_names.h"
#include "capstan/engine/make_mesh.h"
#include "capstan/pipeline/deepspeed_order.h"
#include "capstan/pipeline/partition.h"
#include "capstan/python/bind.h"
#include "capstan/python/py_pipeline.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

using pipeline::Layer;
using Steps = std::vector<std::vector<std::pair<std::string, int>>>;  // instruction, micro-batch

Steps named(const std::vector<std::vector<pipeline::Instruction>>& steps) {
  Steps result(steps.size());
  for (std::size_t step = 0; step < steps.size(); ++step) {
    for (const pipeline::Instruction& instruction : steps[step]) {
      result[step].emplace_back(to_string(instruction.op), instruction.micro_batch);
    }
  }
  return result;
}

void bind_steps(py::module_& module) {
  module.def(
      "deepspeed_train_steps",
      [](int stages, int micro_batches, int stage) {
        const pipeline::Shape shape = {.stages = stages, .micro_batches = micro_batches};
        return std::make_pair(named(deepspeed_train_steps(shape, stage)),
                              deepspeed_train_buffers(shape, stage));
      },
      py::arg("stages"), py::arg("micro_batches"), py::arg("stage"),
      "(instruction, micro-batch) in each step of DeepSpeed's order, and its number of buffers.");
  module.def(
      "deepspeed_inference_steps",
      [](int stages, int micro_batches, int stage) {
        const pipeline::Shape shape = {.stages = stages, .micro_batches = micro_batches};
        return std::make_pair(named(deepspeed_inference_steps(shape, stage)),
                              pipeline::kDeepspeedInferenceBuffers);
      },
      py::arg("stages"), py::arg("micro_batches"), py::arg("stage"), "Likewise, forwards only.");
}

// An error whose cause is what Python raised in one of the calls.
[[noreturn]] void raise_from(const Error& error, const py::error_already_set& cause) {
  const py::object type = py::module_::import("capstan.errors").attr("CommError");
  const ErrorInfo& info = error.info();
  const py::object raised = type(info.what, info.where, info.fix);
  const py::object value = cause.value();
  if (cause.trace()) value.attr("__traceback__") = cause.trace();
  raised.attr("__cause__") = value;
  PyErr_SetObject(type.ptr(), raised.ptr());
  throw py::error_already_set();
}

// Runs without the GIL; what Python raised meanwhile is not lost.
template <typename Run>
auto run_released(Run run) {
  try {
    const py::gil_scoped_release released;
    return run();
  } catch (const CommError& error) {
    try {
      std::rethrow_if_nested(error);
    } catch (const py::error_already_set& cause) {
      raise_from(error, cause);
    } catch (...) {  // not Python's: in the text already
    }
    throw;
  }
}

void bind_run(py::module_& module) {
  py::class_<PyPipeline>(module, "Pipeline", "Trains and evaluates one stage of a pipeline.")
      .def(py::init<PyEngine&, py::object, bool>(), py::arg("engine"), py::arg("calls"),
           py::arg("halves") = true, py::keep_alive<1, 2>())
      .def(
          "train",
          [](PyPipeline& self, const std::string& schedule, int micro_batches) {
            return run_released([&] { return self.train(schedule, micro_batches); });
          },
          py::arg("schedule"), py::arg("micro_batches"))
      .def(
          "evaluate",
          [](PyPipeline& self, int micro_batches) {
            return run_released([&] { return self.evaluate(micro_batches); });
          },
          py::arg("micro_batches"))
      .def_property_readonly("last_step", &PyPipeline::last_step)
      .def(
          "mean_losses",
          [](PyPipeline& self, const std::vector<at::Tensor>& losses,
             const std::vector<std::vector<double>>& others) {
            const py::gil_scoped_release released;
            const engine::LossMeans means = self.mean_losses(losses, others);
            return std::make_pair(means.own, means.all);
          },
          py::arg("losses"), py::arg("others"))
      .def("mean", &PyPipeline::mean, py::arg("stacked"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace

void bind_pipeline(py::module_& module) {
  bind_steps(module);
  bind_run(module);
  py::class_<Layer>(module, "PipelineLayer", "What a cut of a model into stages is made from.")
      .def(py::init<std::string, std::int64_t, double, std::int64_t, std::int64_t>(),
           py::arg("type"), py::arg("params") = 0, py::arg("seconds") = 0.0,
           py::arg("activation_bytes") = 0, py::arg("state_bytes") = 0)
      .def_readonly("type", &Layer::type)
      .def_readonly("params", &Layer::params)
      .def_readonly("seconds", &Layer::seconds)
      .def_readonly("activation_bytes", &Layer::activation_bytes)
      .def_readonly("state_bytes", &Layer::state_bytes);
  module.def(
      "cut_blocks",
      [](const std::vector<double>& costs, int stages) {
        return pipeline::cut_blocks(costs, stages);
      },
      py::arg("costs"), py::arg("stages"),
      "Which block each stage begins with, and the end, for the costs of embeddings, blocks and "
      "output.");
  module.def(
      "pipe_mesh",
      [](int ranks, int stages) {
        engine::Options options;
        options.mesh.pipe = stages;
        options.names = config::option_names();
        return engine::make_mesh(options, ranks);
      },
      py::arg("ranks"), py::arg("stages"), "Stages outside, ranks with other data inside.");
  module.def(
      "cut_layers",
      [](const std::string& method, const std::vector<Layer>& layers, int stages,
         std::int64_t stage_bytes) {
        // Of a step in full swing: as many micro-batches as make every stage hold its most.
        const pipeline::Target target = {.shape = {.stages = stages, .micro_batches = stages},
                                         .stage_bytes = stage_bytes};
        return cut_layers(pipeline::method_named(method), layers, target);
      },
      py::arg("method"), py::arg("layers"), py::arg("stages"), py::arg("stage_bytes") = 0,
      "Where each stage begins, and the end.");
}

}  // namespace capstan::python
