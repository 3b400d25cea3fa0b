// A stage of a pipeline whose parameters belong to an engine: any ZeRO stage under any schedule.
#pragma once

#include "capstan/engine/engine.h"
#include "capstan/pipeline/instruction.h"
#include "capstan/pipeline/stage.h"

namespace capstan::engine {

// Who derives from this says what is computed: inputs(), labels(), forward() and loss(). The engine
// has the parameters of all chunks of this stage. Its group are the ranks that have the same stage
// for other data, and Parts::pipe those that have the other stages for the same data; the latter is
// the executor's group too.
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

  const StepReport& last_step() const { return report_; }

 private:
  Engine& engine_;
  const int backwards_;  // in one step, of all chunks
  int done_ = 0;
  StepReport report_;
};

}  // namespace capstan::engine
