// The smallest training program: a model with one unit per layer, sharded at stage 3.
#include <cstdio>

#include <torch/nn.h>

#include "capstan/base/error.h"
#include "capstan/engine/engine.h"
#include "capstan/nn/unit.h"

struct ModelImpl : torch::nn::Module {
  capstan::nn::Unit<torch::nn::Linear> in = register_module("in", capstan::nn::Unit<torch::nn::Linear>(8, 256));
  capstan::nn::Unit<torch::nn::Linear> out = register_module("out", capstan::nn::Unit<torch::nn::Linear>(256, 1));
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(in(x))); }
};
TORCH_MODULE(Model);

int train(int, char**) {
  capstan::engine::Options options;
  options.optimizer = capstan::optim::Options{.kind = capstan::optim::Kind::adamw, .hyper = {.lr = 1e-2}};
  options.shard.stage = 3;
  Model model;
  capstan::Engine engine(model, options);
  torch::manual_seed(engine.group().rank());  // every rank has data of its own
  for (int step = 0; step < 50; ++step) {
    const at::Tensor x = torch::randn({64, 8});
    const at::Tensor loss = torch::mse_loss(model(x), x.square().sum(1, /*keepdim=*/true));
    engine.backward(loss);
    engine.step();
    if (engine.group().rank() == 0 && step % 10 == 9) std::printf("step %d loss %.3f\n", step + 1, loss.item<float>());
  }
  engine.close();
  return 0;
}

int main(int argc, char** argv) {
  return capstan::run_guarded(train, argc, argv, [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); });
}
