// Trains a model of its own with the installed engine, at the stage that its argument names.
#include <iostream>
#include <string>

#include <torch/nn.h>

#include <capstan/base/error.h>
#include <capstan/base/guard.h>
#include <capstan/engine/engine.h>
#include <capstan/nn/unit.h>

namespace {

using capstan::nn::Unit;
using torch::nn::Linear;

struct ModelImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(in(x))); }
  Unit<Linear> in = register_module("in", Unit<Linear>(4, 32));
  Unit<Linear> out = register_module("out", Unit<Linear>(32, 1));
};
TORCH_MODULE(Model);

int train(int argc, char** argv) {
  capstan::engine::Options options;
  options.optimizer = capstan::optim::Options{.hyper = {.lr = 1e-2}};
  options.shard.stage = argc > 1 ? std::stoi(argv[1]) : 3;
  torch::manual_seed(0);
  Model model;
  capstan::Engine engine(model, options);
  const at::Tensor x = torch::randn({16, 4});
  float first = 0;
  float last = 0;
  for (int step = 0; step < 40; ++step) {
    const at::Tensor loss = torch::mse_loss(model(x), x.sum(1, /*keepdim=*/true));
    engine.backward(loss);
    engine.step();
    last = loss.item<float>();
    if (step == 0) first = last;
  }
  std::cout << (last < first / 2 ? "learnt" : "did not learn") << " on rank "
            << engine.group().rank() << " of " << engine.group().size() << std::endl;
  engine.close();
  return 0;
}

void report(const std::string& text) { std::cerr << text << std::endl; }

}  // namespace

int main(int argc, char** argv) { return capstan::run_guarded<report>(train, argc, argv); }
