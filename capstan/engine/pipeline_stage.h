// A stage of a pipeline whose parameters belong to an engine: any ZeRO stage under any schedule.
#pragma once

#include "capstan/engine/engine.h"
#include "capstan/pipeline/instruction.h"
#include "capstan/pipeline/stage.h"

namespace capstan::engine {

// Who derives from this says what is computed: inputs(), labels(), forward() and loss(). The engine
// has the parameters of all chunks of this stage, under the names that they have in the whole
// model, and Options::mesh.pipe stages; the executor's group is
// Engine::mesh().over(layout::Axis::pipe).
//
// The engine's backward is never split: where a schedule has the backward for inputs, all of it
// runs, and nothing where it has the one for weights.
class PipelineStage : public pipeline::Stage {
 public:
  // Throws ConfigError unless the engine accumulates as many micro-batches as the schedule has.
  // The engine must outlive this.
  PipelineStage(Engine& engine, const pipeline::Shape& shape);

  void backward(int chunk, const Differential& of) final;
  pipeline::Tensors backward_inputs(int chunk, const Differential& of,
                                    const pipeline::Tensors& inputs) final;
  void backward_weights(int chunk, const Differential& of) final;
  void step() final;
  void failed(const std::string& why) override;

  const StepReport& last_step() const { return report_; }

 private:
  Engine& engine_;
  const int backwards_;  // in one step, of all chunks
  int done_ = 0;
  StepReport report_;
};

}  // namespace capstan::engine
