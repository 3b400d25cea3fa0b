// A small model of one layer per part, and what its training gives without a pipeline.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "capstan/pipeline/instruction.h"
#include "capstan/pipeline/stage.h"

namespace capstan::pipeline {

constexpr int kWidth = 5;
constexpr int kSteps = 2;
constexpr double kRate = 0.1;

// Each micro-batch has a shape of its own.
inline int rows_of(int micro_batch) { return 1 + (3 * micro_batch) % 4; }

inline at::Generator seeded(std::uint64_t seed) { return at::detail::createCPUGenerator(seed); }

// Activations with numbers and marks that every part reads and passes on.
inline Tensors inputs_of(int step, int micro_batch) {
  auto generator = seeded(static_cast<std::uint64_t>(100 * step + micro_batch));
  const int rows = rows_of(micro_batch);
  return {at::randn({rows, kWidth}, generator),
          at::randint(0, kWidth, {rows}, generator, at::kLong),
          at::randint(0, 2, {kWidth}, generator, at::kInt).to(at::kBool), at::full({rows, 1}, 0.5)};
}

inline Tensors labels_of(int step, int micro_batch) {
  auto generator = seeded(static_cast<std::uint64_t>(7000 + 100 * step + micro_batch));
  return {at::randn({rows_of(micro_batch), kWidth}, generator)};
}

inline torch::nn::Linear layer_of(int part) {
  torch::nn::Linear layer(kWidth, kWidth);
  const at::NoGradGuard no_grad;
  auto generator = seeded(static_cast<std::uint64_t>(part));
  for (at::Tensor& param : layer->parameters()) param.normal_(0.0, 0.4, generator);
  return layer;
}

inline Tensors forward_of(torch::nn::Linear& layer, const Tensors& in) {
  const at::Tensor picked = in[0].gather(1, (in[1] % kWidth).unsqueeze(1));
  const at::Tensor x = at::where(in[2], at::tanh(layer(in[0])), in[0]) * in[3] + picked;
  return {x, in[1] + 1, in[2].logical_not(), in[3]};
}

inline at::Tensor loss_of(const Tensors& outputs, const Tensors& labels) {
  return (outputs[0] - labels[0]).pow(2).mean();
}

inline void descend(torch::nn::Linear& layer) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& param : layer->parameters()) {
    param.sub_(param.grad(), kRate);
    param.mutable_grad().reset();
  }
}

struct Trained {
  std::map<int, Tensors> params;  // by part
  Tensors losses;                 // of all steps and micro-batches
};

inline Trained without_pipeline(int parts, int micro_batches) {
  std::vector<torch::nn::Linear> layers;
  for (int part = 0; part < parts; ++part) layers.push_back(layer_of(part));
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < micro_batches; ++i) {
      Tensors x = inputs_of(step, i);
      for (torch::nn::Linear& layer : layers) x = forward_of(layer, x);
      const at::Tensor loss = loss_of(x, labels_of(step, i));
      loss.backward();
      result.losses.push_back(loss.detach());
    }
    for (torch::nn::Linear& layer : layers) descend(layer);
  }
  for (int part = 0; part < parts; ++part) result.params[part] = layers[part]->parameters();
  return result;
}

class TestStage final : public Stage {
 public:
  TestStage(const Shape& shape, int stage) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      layers.push_back(layer_of(shape.part(stage, chunk)));
    }
  }
  Tensors inputs(int micro_batch) override { return inputs_of(steps, micro_batch); }
  Tensors labels(int micro_batch) override { return labels_of(steps, micro_batch); }
  Tensors forward(int chunk, const Tensors& inputs) override {
    if (before_forward) before_forward();
    return forward_of(layers[static_cast<std::size_t>(chunk)], inputs);
  }
  at::Tensor loss(const Tensors& outputs, const Tensors& labels) override {
    return loss_of(outputs, labels);
  }
  void reduce(int chunk) override { reduced.push_back(chunk); }
  void step() override {
    ++steps;
    for (torch::nn::Linear& layer : layers) descend(layer);
  }

  std::vector<torch::nn::Linear> layers;
  std::function<void()> before_forward;
  std::vector<int> reduced;
  int steps = 0;
};

}  // namespace capstan::pipeline
