// A small convolutional network on images of CIFAR's shape, made here: each class is a pattern of
// stripes under noise. Stage 2, bf16, gradient accumulation over two micro-batches.
//   capstan launch -n 2 --no_python 03_images
#include <cstdio>
#include <utility>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "capstan/base/cpu_isa.h"
#include "capstan/base/rank_env.h"
#include "capstan/engine/engine.h"
#include "capstan/nn/unit.h"

namespace {

constexpr int kClasses = 10;

class StageImpl : public torch::nn::Module {
 public:
  StageImpl(int in, int out) {
    conv_ = register_module(
        "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).stride(2).padding(1)));
  }
  at::Tensor forward(const at::Tensor& x) { return at::relu(conv_(x)); }

 private:
  torch::nn::Conv2d conv_{nullptr};
};

class NetworkImpl : public torch::nn::Module {
 public:
  NetworkImpl() {
    first_ = register_module("first", capstan::nn::Unit<StageImpl>(3, 16));
    second_ = register_module("second", capstan::nn::Unit<StageImpl>(16, 32));
    head_ = register_module("head", capstan::nn::Unit<torch::nn::Linear>(32, kClasses));
  }
  at::Tensor forward(const at::Tensor& images) {  // [B, 3, 32, 32] -> [B, classes]
    return head_(second_(first_(images)).mean({2, 3}));
  }

 private:
  capstan::nn::Unit<StageImpl> first_{nullptr};
  capstan::nn::Unit<StageImpl> second_{nullptr};
  capstan::nn::Unit<torch::nn::Linear> head_{nullptr};
};
TORCH_MODULE(Network);

std::pair<at::Tensor, at::Tensor> make_images(int count) {
  const at::Tensor labels = at::randint(kClasses, {count}, at::kLong);
  const at::Tensor columns = at::arange(32, at::kFloat).view({1, 1, 1, 32});
  const at::Tensor waves = (labels.to(at::kFloat) + 1).view({count, 1, 1, 1}) * columns * 0.2;
  const at::Tensor images = waves.sin().expand({count, 3, 32, 32}) + at::randn({count, 3, 32, 32});
  return {images.to(at::kBFloat16), labels};
}

}  // namespace

int main() {
  capstan::avoid_broken_amx();
  const capstan::RankEnv ranks = capstan::read_rank_env(capstan::process_env());
  at::manual_seed(3);
  Network model;
  at::manual_seed(100 + static_cast<std::uint64_t>(ranks.rank));  // every rank sees other images
  capstan::engine::Options options;
  options.shard.stage = 2;
  options.precision.params = capstan::DType::bf16;
  options.batch = {
      .train_samples = 64 * ranks.world_size, .micro_samples = 32, .accumulation_steps = 2};
  options.optimizer = capstan::optim::Options{.hyper = {.lr = 3e-3}};
  capstan::Engine engine(model, options);
  for (int step = 1; step <= 60; ++step) {
    double right = 0;
    for (int micro = 0; micro < 2; ++micro) {
      const auto [images, labels] = make_images(32);
      const at::Tensor scores = model(images).to(at::kFloat);
      engine.backward(at::cross_entropy_loss(scores, labels));
      engine.step();
      right += scores.argmax(1).eq(labels).to(at::kFloat).mean().item<double>() / 2;
    }
    if (ranks.rank == 0 && step % 15 == 0) {
      std::printf("step %d  right %.0f%%\n", step, right * 100);
    }
  }
}
