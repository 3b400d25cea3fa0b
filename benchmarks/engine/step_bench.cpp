// One training step on two CPU ranks, stage by stage, against the same two processes running at
// once without communication. One thread per rank, GPT of 6 x 384, vocabulary 8192, 4 x 128 tokens,
// fp32: the setting of the peers' benchmark.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>

#include "capstan/base/guard.h"
#include "capstan/comm/world.h"
#include "capstan/engine/engine.h"
#include "capstan/models/gpt.h"

namespace capstan {
namespace {
using Clock = std::chrono::steady_clock;

constexpr int kStepsPerRound = 4;

engine::Options options_for(int stage) {
  engine::Options options;
  options.gradient_clipping = 1.0;
  options.optimizer = optim::Options{.kind = optim::Kind::adamw, .hyper = {.lr = 1e-4}};
  options.shard.stage = stage;
  return options;
}

// A model with its engine, and its best round so far.
struct Contender {
  std::string name;
  models::Gpt model;
  Engine engine;
  std::vector<double> seconds;  // per step, one per round

  Contender(std::string label, int stage, comm::Group& group)
      : name(std::move(label)),
        model(models::GptOptions{
            .vocab = 8192, .context = 1024, .width = 384, .layers = 6, .heads = 6, .dropout = 0}),
        engine(model, options_for(stage), {.group = &group}) {}

  void step(const at::Tensor& ids) {
    engine.backward(model->forward(ids, ids));
    engine.step();
  }

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

int run(int argc, char** argv) {
  const int rounds = argc > 1 ? std::stoi(argv[1]) : 9;
  at::set_num_threads(1);
  const std::unique_ptr<comm::World> world = comm::make_world(read_rank_env(process_env()));
  comm::Group& all = world->group();
  const std::unique_ptr<comm::World> alone = comm::make_world(RankEnv{});
  const at::Tensor ids = at::randint(8192, {4, 128}, at::kLong);

  std::vector<std::unique_ptr<Contender>> contenders;
  contenders.push_back(std::make_unique<Contender>("no communication", 0, alone->group()));
  for (const int stage : {0, 1, 2, 3}) {
    contenders.push_back(std::make_unique<Contender>(fmt::format("stage {}", stage), stage, all));
  }
  // Rounds are interleaved, so that a busy minute of the machine hits all alike.
  for (int round = -1; round < rounds; ++round) {
    for (auto& contender : contenders) {
      all.barrier().wait();
      const auto begin = Clock::now();
      for (int i = 0; i < kStepsPerRound; ++i) contender->step(ids);
      all.barrier().wait();  // the slower rank counts
      const std::chrono::duration<double> taken = Clock::now() - begin;
      if (round >= 0) contender->seconds.push_back(taken.count() / kStepsPerRound);
    }
  }
  if (all.rank() == 0) {
    const double bound = contenders.front()->median();
    for (const auto& contender : contenders) {
      fmt::print("{:<18} {:7.1f} ms  {:.3f} x\n", contender->name, contender->median() * 1e3,
                 contender->median() / bound);
    }
  }
  contenders.clear();
  world->close();
  return 0;
}

void report(const std::string& text) { fmt::print(stderr, "step_bench: {}\n", text); }

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  return capstan::run_guarded<capstan::report>(capstan::run, argc, argv);
}
