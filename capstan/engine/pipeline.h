// A list of layers trained as a pipeline: each rank makes and trains those of its stage.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/modules/container/any.h>

#include "capstan/engine/engine.h"
#include "capstan/engine/pipeline_losses.h"
#include "capstan/pipeline/executor.h"

namespace capstan::engine {

// Takes one tensor, what the layer before gave, and gives one.
struct PipelineLayer {
  std::string name;                            // its parameters are called name.weight, ...
  std::function<torch::nn::AnyModule()> make;  // called on the ranks of one stage
  double cost = 1;  // about how long it takes, beside the others: layers are cut by it
};

// What a step's micro-batch is: read by the first stage and the last one.
struct PipelineBatch {
  at::Tensor inputs;
  at::Tensor targets;
};
using ReadBatch = std::function<PipelineBatch(int micro_batch)>;
using LossFunction = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)>;

// Options::mesh.pipe stages, cut so that the slowest is as fast as it can be, in the order of
// Options::pipeline. Checkpoints are those of the whole model, at any number of stages.
//
// Threads: one at a time.
// Ranks:   all members are collective.
// Errors:  ConfigError where there are fewer layers than stages; else as pipeline::Executor.
class Pipeline {
 public:
  // What `parts` names must outlive this.
  Pipeline(const std::vector<PipelineLayer>& layers, LossFunction loss, const Options& options,
           Parts parts);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // One step over batch.accumulation_steps micro-batches: their mean loss over all data, on every
  // rank.
  double train(const ReadBatch& read);
  StepReport last_step() const;
  // Forwards only.
  double evaluate(int micro_batches, const ReadBatch& read);

  // Of this stage: to save and load, and to read parameters.
  Engine& engine() { return *engine_; }

 private:
  class Layers;

  double mean(const pipeline::Tensors& losses);

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Layers> layers_;
  std::unique_ptr<pipeline::Executor> training_;
};

}  // namespace capstan::engine

namespace capstan {
using engine::Pipeline;
}  // namespace capstan
