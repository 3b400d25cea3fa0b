#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "capstan/pipeline/deepspeed_order.h"
#include "capstan/pipeline/partition.h"
#include "capstan/python/bind.h"

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

}  // namespace

void bind_pipeline(py::module_& module) {
  bind_steps(module);
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
