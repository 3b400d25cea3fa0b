// A small convolutional network on images of CIFAR's shape (3 x 32 x 32, ten classes), in bf16 at
// stage 2 with a learning-rate schedule. The images are made here: each class is a colour and a
// direction of stripes, plus noise.
#include <cmath>
#include <cstdio>

#include <torch/nn.h>

#include "capstan/base/guard.h"
#include "capstan/engine/engine.h"
#include "capstan/nn/unit.h"

namespace {

using capstan::nn::Unit;

// x: [batch, channels, height, width]; halves height and width.
struct StageImpl : torch::nn::Module {
  StageImpl(int from, int to)
      : conv(register_module("conv",
                             torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1)))),
        norm(register_module("norm", torch::nn::GroupNorm(4, to))) {}
  at::Tensor forward(const at::Tensor& x) {
    return torch::max_pool2d(torch::relu(norm(conv(x))), 2);
  }
  torch::nn::Conv2d conv;
  torch::nn::GroupNorm norm;
};

struct ClassifierImpl : torch::nn::Module {
  ClassifierImpl()
      : a(register_module("a", Unit<StageImpl>(3, 16))),
        b(register_module("b", Unit<StageImpl>(16, 32))),
        c(register_module("c", Unit<StageImpl>(32, 64))),
        head(register_module("head", Unit<torch::nn::Linear>(64, 10))) {}
  at::Tensor forward(const at::Tensor& x) { return head(c(b(a(x))).mean({2, 3})); }
  Unit<StageImpl> a, b, c;
  Unit<torch::nn::Linear> head;
};
TORCH_MODULE(Classifier);

at::Tensor make_images(const at::Tensor& labels) {
  const at::Tensor grid = torch::arange(32, torch::kFloat) * (2 * M_PI / 8);
  const at::Tensor x = grid.view({1, 1, 1, 32});
  const at::Tensor y = grid.view({1, 1, 32, 1});
  const at::Tensor angle = labels.to(torch::kFloat).view({-1, 1, 1, 1}) * (M_PI / 10);
  const at::Tensor stripes = torch::sin(x * angle.cos() + y * angle.sin());
  const at::Tensor tint = torch::sin(angle + torch::arange(3, torch::kFloat).view({1, 3, 1, 1}));
  return stripes * tint + 0.3 * torch::randn({labels.size(0), 3, 32, 32});
}

int train(int, char**) {
  capstan::engine::Options options;
  options.batch = {.train_samples = 64, .micro_samples = 32};
  options.optimizer = capstan::optim::Options{.hyper = {.lr = 3e-3, .weight_decay = 0.01}};
  options.schedule = capstan::schedule::WarmupCosineLr{.total_steps = 60, .warmup_steps = 5};
  options.precision.params = capstan::DType::bf16;
  options.shard.stage = 2;
  torch::manual_seed(0);
  Classifier model;
  capstan::Engine engine(model, options);
  torch::manual_seed(1 + engine.group().rank());
  for (int step = 1; step <= 60; ++step) {
    const at::Tensor labels = torch::randint(0, 10, {options.batch.micro_samples}, torch::kLong);
    const at::Tensor logits = model(make_images(labels).to(torch::kBFloat16)).to(torch::kFloat);
    const at::Tensor loss = torch::nn::functional::cross_entropy(logits, labels);
    engine.backward(loss);
    const capstan::engine::StepReport report = engine.step();
    if (engine.group().rank() == 0 && step % 15 == 0) {
      std::printf("step %2d loss %.3f right %3.0f %% lr %.5f\n", step, loss.item<float>(),
                  100 * logits.argmax(1).eq(labels).to(torch::kFloat).mean().item<float>(),
                  report.lr.front());
    }
  }
  engine.close();
  return 0;
}

void report(const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }

}  // namespace

int main(int argc, char** argv) { return capstan::run_guarded<report>(train, argc, argv); }
