// A stage of a pipeline whose parameters belong to an engine: any ZeRO stage under any schedule.
#pragma once

#include <deque>
#include <optional>

#include "capstan/engine/backward.h"
#include "capstan/engine/engine.h"
#include "capstan/pipeline/instruction.h"
#include "capstan/pipeline/stage.h"

namespace capstan::engine {

// Who derives from this says what is computed: inputs(), labels(), forward() and loss(). The engine
// has the parameters of all chunks of this stage, under the names that they have in the whole
// model, and Options::mesh.pipe stages; the executor's group is
// Engine::mesh().over(layout::Axis::pipe).
//
// Backwards in halves are those of the engine (Backward::half), with the bits of whole ones. Where
// one cannot be split, all of it runs where a schedule has the half for inputs, and nothing where
// it has the one for weights; on the first stage, the other way round.
class PipelineStage : public pipeline::Stage {
 public:
  // Throws ConfigError unless the engine accumulates as many micro-batches as the schedule has.
  // The engine must outlive this.
  PipelineStage(Engine& engine, const pipeline::Shape& shape);

  // No halves from here on: for graphs that compute activations again in each pass through them,
  // which many short passes would do many times.
  void keep_backwards_whole() { halves_ = false; }

  void backward(int chunk, const Differential& of) final;
  pipeline::Tensors backward_inputs(int chunk, const Differential& of,
                                    const pipeline::Tensors& inputs) final;
  void backward_weights(int chunk, const Differential& of) final;
  double rest_of_scale() const final { return rest_of_scale_; }
  void step() final;
  void failed(const std::string& why) override;

  const StepReport& last_step() const { return report_; }

 private:
  // What is left of a micro-batch's backward. Its outputs hold the graph.
  struct Pending {
    Differential of;
    std::optional<Backward::Half> half;  // unset: all of it
  };
  void finish_first_pending();
  void run_whole(const Differential& of);
  bool next_ends_step() { return ++done_ == backwards_; }

  Engine& engine_;
  const int backwards_;  // in one step, of all chunks
  int done_ = 0;
  double rest_of_scale_ = 1;
  bool halves_ = true;
  std::deque<Pending> pending_;  // in the order of micro-batches
  StepReport report_;
};

}  // namespace capstan::engine
