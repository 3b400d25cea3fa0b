// A pipeline's stage whose layers live in Python.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include "capstan/engine/pipeline_losses.h"
#include "capstan/engine/pipeline_stage.h"
#include "capstan/pipeline/executor.h"
#include "capstan/python/py_engine.h"

namespace capstan::python {

// Trains and evaluates one stage. `calls` has the methods
//   inputs(micro_batch) -> tensors   on the first stage
//   labels(micro_batch)              on the last one, which keeps them itself
//   forward(tensors) -> tensors      on the last stage it returns none and keeps its outputs
//   loss() -> tensor                 of the outputs and labels that are kept longest
// Micro-batches are loaded and run forward in their order.
//
// Threads: one caller at a time, without the GIL; it is taken for each call alone, so that other
//          threads of Python run while this one waits for another rank.
// Errors:  see pipeline::Executor; what Python raised is nested in its CommError.
class PyPipeline {
 public:
  // The engine must outlive this. `halves`: see engine::PipelineStage::keep_backwards_whole().
  PyPipeline(PyEngine& engine, pybind11::object calls, bool halves);

  // One step with a schedule of this name: the losses on the last stage, else nothing.
  std::vector<at::Tensor> train(const std::string& schedule, int micro_batches);
  engine::StepReport last_step() const { return trained_->last_step(); }
  // Forwards only, any number of micro-batches.
  std::vector<at::Tensor> evaluate(int micro_batches);

  // See engine/pipeline_losses.h. Collective.
  engine::LossMeans mean_losses(const std::vector<at::Tensor>& losses,
                                const std::vector<std::vector<double>>& others);
  at::Tensor mean(const at::Tensor& stacked);

 private:
  pipeline::Shape shape(int micro_batches) const;

  PyEngine& engine_;
  comm::Group& pipe_;
  std::shared_ptr<pybind11::object> calls_;
  bool halves_;
  std::string schedule_;  // of executor_
  std::unique_ptr<engine::PipelineStage> trained_;
  std::unique_ptr<pipeline::Executor> executor_;
};

}  // namespace capstan::python
