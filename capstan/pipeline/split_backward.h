// A backward in two halves, with nothing computed twice: the gradients of a stage's inputs, for
// which another stage waits, and those of its parameters, whenever there is time.
#pragma once

#include <optional>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include "capstan/pipeline/stage.h"

namespace capstan::pipeline {

// Between the two halves it holds the graph and the gradients that arrived where the ways to inputs
// and to parameters part. Both halves run the kernels of a whole backward on the same values, so
// that the results have its bits.
//
// Threads: one at a time.
class SplitBackward {
 public:
  // Follows the graph of `outputs`. Nothing where halves would differ from the whole: no output
  // depends on an input, one does not at all, or a part of the graph that ends in parameters only
  // is reached from two places, as that of a weight which is used twice.
  static std::optional<SplitBackward> of(const Tensors& outputs, const Tensors& inputs);

  // The first half, by the gradients of the outputs: those of the inputs, undefined where there is
  // none. The graph is kept.
  Tensors inputs(const Tensors& gradients);
  // The second one, once: adds to the gradients of parameters.
  void weights();

  // Whether weights() gets here: the node that adds to a parameter's gradient.
  bool ends_at(torch::autograd::Node* accumulator) const { return beyond_.contains(accumulator); }

 private:
  // A node from which one way leads to inputs, and another one to parameters only.
  struct Fork {
    torch::autograd::Node* node;
    std::vector<torch::autograd::Edge> to_params;
    Tensors arrived;  // the gradients of its outputs
  };

  std::vector<torch::autograd::Edge> outputs_;
  std::vector<torch::autograd::Edge> inputs_;  // invalid where one needs no gradient
  std::vector<Fork> forks_;            // from the outputs to the inputs
  std::unordered_set<torch::autograd::Node*> beyond_;
};

}  // namespace capstan::pipeline
