// Two models with an engine each, at different stages: a student learns from a teacher that is
// trained at the same time.
#include <cstdio>

#include <torch/nn.h>

#include "capstan/base/guard.h"
#include "capstan/comm/world.h"
#include "capstan/engine/engine.h"
#include "capstan/nn/unit.h"

namespace {

using capstan::nn::Unit;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int width)
      : in(register_module("in", Unit<torch::nn::Linear>(8, width))),
        out(register_module("out", Unit<torch::nn::Linear>(width, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return out(torch::tanh(in(x))); }
  Unit<torch::nn::Linear> in, out;
};
TORCH_MODULE(Net);

capstan::engine::Options options_for(int stage) {
  capstan::engine::Options options;
  options.optimizer = capstan::optim::Options{.hyper = {.lr = 1e-2}};
  options.shard.stage = stage;
  return options;
}

int train(int, char**) {
  // Both engines talk over one world.
  const auto world = capstan::comm::make_world(capstan::read_rank_env(capstan::process_env()));
  capstan::comm::Group& group = world->group();
  torch::manual_seed(0);  // every run starts from the same weights
  Net teacher(256);
  Net student(16);
  capstan::Engine teaches(teacher, options_for(3), {.group = &group});
  capstan::Engine learns(student, options_for(1), {.group = &group});
  torch::manual_seed(1 + group.rank());  // every rank has data of its own
  for (int step = 1; step <= 100; ++step) {
    const at::Tensor x = torch::randn({64, 8});
    const at::Tensor answer = teacher(x);
    const at::Tensor truth = torch::mse_loss(answer, x.amax(1, /*keepdim=*/true));
    const at::Tensor imitation = torch::mse_loss(student(x), answer.detach());
    teaches.backward(truth);
    learns.backward(imitation);
    teaches.step();
    learns.step();
    if (group.rank() == 0 && (step == 1 || step % 25 == 0)) {
      std::printf("step %3d teacher %.4f student %.4f\n", step, truth.item<float>(),
                  imitation.item<float>());
    }
  }
  world->close();
  return 0;
}

void report(const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }

}  // namespace

int main(int argc, char** argv) { return capstan::run_guarded<report>(train, argc, argv); }
