// A small model for engine tests: blocks that are units, a tied head, a few awkward sizes.
#pragma once

#include <memory>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "capstan/nn/unit.h"

namespace capstan::test {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int width)
      : up(register_module("up", torch::nn::Linear(width, 2 * width + 1))),
        down(register_module("down", torch::nn::Linear(2 * width + 1, width))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))) {}

  at::Tensor forward(const at::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }

  torch::nn::Linear up, down;
  torch::nn::LayerNorm norm;
};

// x: [batch, width]; gives [batch, classes].
struct SmallModelImpl : torch::nn::Module {
  SmallModelImpl(int width, int blocks_count, int classes)
      : entry(register_module("entry", nn::Unit<torch::nn::Linear>(width, width))),
        head(register_module("head", torch::nn::Linear(width, classes))) {
    for (int i = 0; i < blocks_count; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), nn::Unit<BlockImpl>(width)));
    }
    scale = register_parameter("scale", torch::ones({1}));
  }

  at::Tensor forward(at::Tensor x) {
    x = entry(x);
    for (auto& block : blocks) x = block(x);
    return head(x) * scale;
  }

  nn::Unit<torch::nn::Linear> entry;
  std::vector<nn::Unit<BlockImpl>> blocks;
  torch::nn::Linear head;
  at::Tensor scale;
};
TORCH_MODULE(SmallModel);

// The same weights on every call with the same seed, on any thread: libtorch's default generator
// is shared between threads, so values come from one of our own.
inline void fill(torch::nn::Module& model, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (at::Tensor& param : model.parameters()) param.normal_(0.0, 0.2, generator);
}

struct Batch {
  at::Tensor inputs;   // [samples, width]
  at::Tensor targets;  // [samples]
};

inline Batch make_batch(int samples, int width, int classes, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return {torch::randn({samples, width}, generator),
          torch::randint(0, classes, {samples}, generator, at::kLong)};
}

inline at::Tensor loss_of(SmallModel& model, const Batch& batch, at::ScalarType dtype) {
  const at::Tensor logits = model->forward(batch.inputs.to(dtype));
  return torch::nn::functional::cross_entropy(logits.to(at::kFloat), batch.targets);
}

}  // namespace capstan::test
