// The model of `make train` (gpt2-mini, bf16, 4 sequences per rank) on two CPU ranks at stage 3,
// against the same model in a plain libtorch loop, both processes at once, without communication.
//   capstan launch -n 2 --no_python train_bench [rounds = 9]
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include "capstan/base/guard.h"
#include "capstan/comm/world.h"
#include "capstan/engine/engine.h"
#include "capstan/models/gpt.h"

namespace capstan {
namespace {
using Clock = std::chrono::steady_clock;

constexpr int kStepsPerRound = 6;
constexpr int kSequences = 4;

engine::Options engine_options() {
  engine::Options options;
  options.gradient_clipping = 1.0;
  options.optimizer = optim::Options{.kind = optim::Kind::adamw, .hyper = {.lr = 1e-3}};
  options.precision.params = DType::bf16;
  options.shard.stage = 3;
  options.shard.persistence_threshold_elems = 4096;
  return options;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int run(int argc, char** argv) {
  const int rounds = argc > 1 ? std::stoi(argv[1]) : 9;
  at::set_num_threads(1);
  const auto world = comm::make_world(read_rank_env(process_env()));
  models::GptOptions size = models::gpt_by_name("gpt2-mini");
  size.vocab = 256;
  size.dropout = 0;
  const at::Tensor ids = at::randint(size.vocab, {kSequences, size.context}, at::kLong);

  models::Gpt plain(size);
  plain->to(at::kBFloat16);
  torch::optim::AdamW optimizer(plain->parameters(), torch::optim::AdamWOptions(1e-3));
  const auto plain_step = [&] {
    plain->forward(ids, ids).backward();
    torch::nn::utils::clip_grad_norm_(plain->parameters(), 1.0);
    optimizer.step();
    optimizer.zero_grad();
  };
  models::Gpt model(size);
  Engine engine(model, engine_options(), {.group = &world->group()});
  const auto engine_step = [&] {
    engine.backward(model->forward(ids, ids));
    engine.step();
  };

  std::vector<double> seconds[2];
  const std::function<void()> steps[2] = {plain_step, engine_step};
  // Rounds are interleaved, so that a busy minute of the machine hits both alike.
  for (int round = -1; round < rounds; ++round) {
    for (int which = 0; which < 2; ++which) {
      world->group().barrier().wait();
      const auto begin = Clock::now();
      for (int i = 0; i < kStepsPerRound; ++i) steps[which]();
      world->group().barrier().wait();  // the slower rank counts
      const std::chrono::duration<double> taken = Clock::now() - begin;
      if (round >= 0) seconds[which].push_back(taken.count() / kStepsPerRound);
    }
  }
  if (world->group().rank() == 0) {
    const auto tokens =
        static_cast<double>(world->group().size()) * kSequences * static_cast<double>(size.context);
    const double bound = tokens / median(seconds[0]);
    const double ours = tokens / median(seconds[1]);
    fmt::print("plain libtorch loop, no communication {:8.0f} tokens/s\n", bound);
    fmt::print("capstan at stage 3                    {:8.0f} tokens/s  {:.3f} x\n", ours,
               ours / bound);
  }
  world->close();
  return 0;
}

void report(const std::string& text) { fmt::print(stderr, "train_bench: {}\n", text); }

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  return capstan::run_guarded<capstan::report>(capstan::run, argc, argv);
}
