// What a stage of a pipeline computes, as the executor asks for it.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace capstan::pipeline {

using Tensors = std::vector<at::Tensor>;

// Backwards are autograd's, unless a stage has its own.
// Threads: called on the thread that runs the executor, by one executor.
class Stage {
 public:
  virtual ~Stage() = default;

  // Of a micro-batch, where this stage has the first part of the model: what its forward takes.
  virtual Tensors inputs(int micro_batch) = 0;
  // Likewise where it has the last part: what its loss takes besides outputs.
  virtual Tensors labels(int micro_batch) = 0;

  // With gradients enabled, autograd records it. Outputs may be inputs. No input may be changed in
  // place that requires a gradient: it is a leaf.
  virtual Tensors forward(int chunk, const Tensors& inputs) = 0;
  // Of the last part's outputs: one element.
  virtual at::Tensor loss(const Tensors& outputs, const Tensors& labels) = 0;

  // What is differentiated: the loss, without a gradient, in the last part; elsewhere those outputs
  // whose gradients have come, which may be none.
  struct Differential {
    Tensors outputs;
    Tensors gradients;  // empty for the loss
    bool last = false;  // of the chunk's backwards in this step

    bool of_loss() const { return gradients.empty() && !outputs.empty(); }
  };
  // Adds to the gradients of parameters, and of the tensors that forward() was given.
  virtual void backward(int chunk, const Differential& of);
  // In halves: the gradients of `inputs` alone (undefined where there is none), with the graph
  // kept; and those of the parameters. The second goes through the whole graph once more, as
  // autograd has no other way: the gradients of inputs are computed twice.
  virtual Tensors backward_inputs(int chunk, const Differential& of, const Tensors& inputs);
  virtual void backward_weights(int chunk, const Differential& of);

  // What the gradients that leave for the stage before are still to be multiplied with, after a
  // backward of the loss: a loss in fp16 is not differentiated with all of a large loss scale.
  virtual double rest_of_scale() const { return 1; }

  // All of a chunk's gradients are there.
  virtual void reduce(int /*chunk*/) {}
  virtual void step() = 0;

  // The executor has failed: nobody may wait for this rank any more.
  virtual void failed(const std::string& /*why*/) {}
};

}  // namespace capstan::pipeline
