#include "capstan/pipeline/stage.h"

#include <torch/csrc/autograd/autograd.h>

namespace capstan::pipeline {

void Stage::backward(int /*chunk*/, const Differential& of) {
  if (!of.outputs.empty()) torch::autograd::backward(of.outputs, of.gradients);
}

Tensors Stage::backward_inputs(int /*chunk*/, const Differential& of, const Tensors& inputs) {
  Tensors wanted;
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) wanted.push_back(input);
  }
  Tensors found;
  if (of.outputs.empty()) {
    found.resize(wanted.size());
  } else if (!wanted.empty()) {
    found = torch::autograd::grad(of.outputs, wanted, of.gradients, /*retain_graph=*/true,
                                  /*create_graph=*/false, /*allow_unused=*/true);
  }
  Tensors gradients;
  for (std::size_t next = 0; const at::Tensor& input : inputs) {
    const bool has = input.defined() && input.requires_grad();
    gradients.push_back(has ? found[next++] : at::Tensor());
  }
  return gradients;
}

void Stage::backward_weights(int chunk, const Differential& of) { backward(chunk, of); }

}  // namespace capstan::pipeline
