// The smallest training program: a model with one unit per layer, sharded at stage 3.
#include <cstdio>

#include <torch/nn.h>

#include "capstan/engine/engine.h"
#include "capstan/nn/unit.h"

using capstan::nn::Unit;
using torch::nn::Linear;

struct ModelImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(in(x))); }
  Unit<Linear> in = register_module("in", Unit<Linear>(8, 256));
  Unit<Linear> out = register_module("out", Unit<Linear>(256, 1));
};
TORCH_MODULE(Model);

int main() {
  capstan::engine::Options options;
  options.optimizer = capstan::optim::Options{.hyper = {.lr = 1e-2}};  // AdamW
  options.shard.stage = 3;
  torch::manual_seed(0);  // every run starts from the same weights
  Model model;
  capstan::Engine engine(model, options);
  torch::manual_seed(1 + engine.group().rank());  // every rank has data of its own
  for (int step = 1; step <= 50; ++step) {
    const at::Tensor x = torch::randn({64, 8});
    const at::Tensor loss = torch::mse_loss(model(x), x.square().sum(1, /*keepdim=*/true));
    engine.backward(loss);
    engine.step();
    const bool show = engine.group().rank() == 0 && step % 10 == 0;
    if (show) std::printf("step %d loss %.3f\n", step, loss.item<float>());
  }
  engine.close();
}
