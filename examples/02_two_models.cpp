// Two models that train each other, each with an engine, a stage and an optimizer of its own: a
// generator learns to make numbers that a critic cannot tell from real ones.
//   capstan launch -n 2 --no_python 02_two_models
#include <cstdio>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "capstan/base/rank_env.h"
#include "capstan/comm/world.h"
#include "capstan/engine/engine.h"
#include "capstan/nn/unit.h"

using capstan::nn::Unit;
using torch::nn::Linear;
using torch::nn::Sequential;

namespace {

capstan::engine::Options options_for(int stage, double lr) {
  capstan::engine::Options options;
  options.shard.stage = stage;
  options.shard.persistence_threshold_elems = 0;
  options.optimizer = capstan::optim::Options{.hyper = {.lr = lr, .beta1 = 0.5}};
  return options;
}

at::Tensor should_be(const at::Tensor& judged, double truth) {
  return at::binary_cross_entropy_with_logits(judged, at::full_like(judged, truth));
}

}  // namespace

int main() {
  at::manual_seed(7);
  Sequential generator(Unit<Linear>(4, 32), torch::nn::ReLU(), Unit<Linear>(32, 1));
  Sequential critic(Unit<Linear>(1, 32), torch::nn::ReLU(), Unit<Linear>(32, 1));
  // Both engines talk over the same ranks.
  const auto world = capstan::comm::make_world(capstan::read_rank_env(capstan::process_env()));
  capstan::Engine generator_engine(generator, options_for(3, 2e-3), {.group = &world->group()});
  capstan::Engine critic_engine(critic, options_for(2, 2e-3), {.group = &world->group()});
  for (int step = 1; step <= 600; ++step) {
    const at::Tensor real = at::randn({64, 1}) * 0.5 + 3;
    const at::Tensor fake = generator->forward(at::randn({64, 4}));
    critic_engine.backward(should_be(critic->forward(real), 1) +
                           should_be(critic->forward(fake.detach()), 0));
    critic_engine.step();
    // This backward also reaches the critic; its engine is told not to keep that.
    for (const at::Tensor& parameter : critic->parameters()) parameter.requires_grad_(false);
    generator_engine.backward(should_be(critic->forward(fake), 1));
    for (const at::Tensor& parameter : critic->parameters()) parameter.requires_grad_(true);
    generator_engine.step();
    if (world->group().rank() == 0 && step % 150 == 0) {
      std::printf("step %d  mean of made numbers %.2f (real: 3.00)\n", step,
                  fake.mean().item<float>());
    }
  }
  world->close();
}
