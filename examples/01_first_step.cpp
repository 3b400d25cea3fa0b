// A small network whose parameters, gradients and optimizer state are shared out over all ranks.
//   capstan launch -n 2 --no_python 01_first_step      (or by itself: one rank)
#include <cstdio>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "capstan/engine/engine.h"
#include "capstan/nn/unit.h"

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl() { linear_ = register_module("linear", torch::nn::Linear(64, 64)); }
  at::Tensor forward(const at::Tensor& x) { return x + at::gelu(linear_(x)); }

 private:
  torch::nn::Linear linear_{nullptr};
};

int main() {
  at::manual_seed(1);
  using capstan::nn::Unit;
  torch::nn::Sequential model(Unit<BlockImpl>(), Unit<BlockImpl>(), Unit<torch::nn::Linear>(64, 1));
  capstan::engine::Options options;
  options.shard.stage = 3;
  options.shard.persistence_threshold_elems = 0;  // so small a model would stay whole otherwise
  options.optimizer = capstan::optim::Options{.hyper = {.lr = 0.01}};
  capstan::Engine engine(model, options);
  for (int step = 1; step <= 50; ++step) {
    const at::Tensor x = at::randn({32, 64});
    const at::Tensor loss = (model->forward(x) - x.sum(1, true).sin()).square().mean();
    engine.backward(loss);
    engine.step();
    if (engine.group().rank() == 0 && step % 10 == 0) {
      std::printf("step %d  loss %.4f\n", step, loss.item<float>());
    }
  }
}
