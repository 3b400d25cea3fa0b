#include "capstan/python/py_pipeline.h"

#include <utility>

#include <pybind11/stl.h>

#include "capstan/pipeline/schedules.h"
#include "capstan/python/py_optimizer.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

using pipeline::Tensors;

// What both kinds of stages ask of Python.
template <typename Base>
class Calling final : public Base {
 public:
  template <typename... Args>
  explicit Calling(py::object* calls, Args&&... args)
      : Base(std::forward<Args>(args)...), calls_(calls) {}

  Tensors inputs(int micro_batch) final {
    const py::gil_scoped_acquire gil;
    return calls_->attr("inputs")(micro_batch).template cast<Tensors>();
  }
  Tensors labels(int micro_batch) final {
    const py::gil_scoped_acquire gil;
    calls_->attr("labels")(micro_batch);
    return {};
  }
  Tensors forward(int /*chunk*/, const Tensors& inputs) final {
    const py::gil_scoped_acquire gil;
    return calls_->attr("forward")(inputs).template cast<Tensors>();
  }
  at::Tensor loss(const Tensors& /*outputs*/, const Tensors& /*labels*/) final {
    const py::gil_scoped_acquire gil;
    return calls_->attr("loss")().template cast<at::Tensor>();
  }

 private:
  py::object* calls_;
};

class ForwardsOnly : public pipeline::Stage {
 public:
  explicit ForwardsOnly(engine::Engine& engine) : engine_(engine) {}
  void step() final {}
  void failed(const std::string& why) final { engine_.mesh().abort(why); }

 private:
  engine::Engine& engine_;
};

}  // namespace

PyPipeline::PyPipeline(PyEngine& engine, py::object calls, bool halves)
    : engine_(engine),
      pipe_(engine.engine().mesh().over(layout::Axis::pipe)),
      calls_(shared_object(std::move(calls))),
      halves_(halves) {}

pipeline::Shape PyPipeline::shape(int micro_batches) const {
  return {.stages = pipe_.size(), .micro_batches = micro_batches};
}

std::vector<at::Tensor> PyPipeline::train(const std::string& schedule, int micro_batches) {
  const std::string key = schedule + " " + std::to_string(micro_batches);
  if (key != schedule_) {
    executor_.reset();
    trained_ = std::make_unique<Calling<engine::PipelineStage>>(calls_.get(), engine_.engine(),
                                                                shape(micro_batches));
    if (!halves_) trained_->keep_backwards_whole();
    executor_ = std::make_unique<pipeline::Executor>(
        make_schedule(pipeline::kind_named(schedule), shape(micro_batches)), pipe_, *trained_,
        engine_.sharded().device());
    schedule_ = key;
  }
  engine_.note_change();
  return executor_->run();
}

std::vector<at::Tensor> PyPipeline::evaluate(int micro_batches) {
  Calling<ForwardsOnly> stage(calls_.get(), engine_.engine());
  pipeline::Executor executor(make_schedule(pipeline::Kind::inference, shape(micro_batches)), pipe_,
                              stage, engine_.sharded().device());
  return executor.run();
}

engine::LossMeans PyPipeline::mean_losses(const std::vector<at::Tensor>& losses,
                                          const std::vector<std::vector<double>>& others) {
  return engine::mean_losses(engine_.engine().mesh(), engine_.sharded().device(), losses, others);
}

at::Tensor PyPipeline::mean(const at::Tensor& stacked) {
  return engine::mean_over_data(engine_.engine().mesh(), engine_.sharded().device(), stacked);
}

}  // namespace capstan::python
