// What the engine itself costs the CPU: the time that the calling thread computes in forward,
// backward and step, per unit; forward and backward less the same model without an engine. Waiting
// for peers is not counted, nor is what other threads do. Bound: 50 us per unit and phase.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include "capstan/base/guard.h"
#include "capstan/comm/world.h"
#include "capstan/engine/engine.h"
#include "capstan/nn/unit.h"

namespace capstan {
namespace {

constexpr int kUnits = 48;
constexpr int kParamsPerUnit = 12;  // as many as a block of GPT-2 has
constexpr double kBoundMicros = 50;
constexpr int kRounds = 9;

// Uses each of its parameters once, with as little arithmetic as there can be.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    for (int i = 0; i < kParamsPerUnit; ++i) {
      params.push_back(register_parameter(fmt::format("p{}", i), at::ones({16})));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const at::Tensor& param : params) x = x + param;
    return x;
  }
  std::vector<at::Tensor> params;
};

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    for (int i = 0; i < kUnits; ++i) {
      blocks.push_back(register_module(fmt::format("block{}", i), nn::Unit<BlockImpl>()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x.sum();
  }
  std::vector<nn::Unit<BlockImpl>> blocks;
};
TORCH_MODULE(Model);

// Of the calling thread, in microseconds.
double cpu_micros() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// Other programs only ever slow a step down (they empty the caches): the fast steps tell about us.
double fast_one(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 10];
}

using Costs = std::array<double, 3>;  // forward, backward, step; per unit

Costs measure(Model& model, int steps, const std::function<void(const at::Tensor&)>& backward,
              const std::function<void()>& step) {
  std::array<std::vector<double>, 3> taken;
  const at::Tensor x = at::zeros({16});
  for (int i = 0; i < steps; ++i) {
    const double begin = cpu_micros();
    const at::Tensor loss = model->forward(x);
    const double forward_end = cpu_micros();
    backward(loss);
    const double backward_end = cpu_micros();
    step();
    taken[0].push_back(forward_end - begin);
    taken[1].push_back(backward_end - forward_end);
    taken[2].push_back(cpu_micros() - backward_end);
  }
  Costs costs{};
  for (std::size_t i = 0; i < costs.size(); ++i) costs[i] = fast_one(taken[i]) / kUnits;
  return costs;
}

engine::Options options_for(int stage) {
  engine::Options options;
  options.optimizer = optim::Options{.kind = optim::Kind::adamw, .hyper = {.lr = 1e-4}};
  options.shard.stage = stage;
  options.shard.persistence_threshold_elems = 0;  // every unit is gathered and reduced
  options.shard.max_reuse_bytes = 0;              // and again for backward
  return options;
}

// The engine's own costs: rounds of the same model without it and with it in turn, since what else
// the machine does changes both; of the rounds' differences the middle one.
Costs own_costs(Model& plain, Model& model, Engine& engine, int steps) {
  std::array<std::vector<double>, 3> differences;
  for (int round = 0; round < kRounds; ++round) {
    Costs without = measure(
        plain, steps, [](const at::Tensor& loss) { loss.backward(); },
        [&] { plain->zero_grad(/*set_to_none=*/true); });
    without[2] = 0;  // there is no step without an engine: all of it counts
    const Costs with = measure(
        model, steps, [&](const at::Tensor& loss) { engine.backward(loss); },
        [&] { engine.step(); });
    for (std::size_t i = 0; i < with.size(); ++i) differences[i].push_back(with[i] - without[i]);
  }
  Costs own{};
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::sort(differences[i].begin(), differences[i].end());
    own[i] = differences[i][kRounds / 2];
  }
  return own;
}

int run(int argc, char** argv) {
  const int steps = std::max(1, (argc > 1 ? std::stoi(argv[1]) : 200) / kRounds);
  at::set_num_threads(1);
  const std::unique_ptr<comm::World> world = comm::make_world(read_rank_env(process_env()));
  const bool shows = world->group().rank() == 0;
  if (shows) {
    fmt::print("{} units of {} parameters, {} rank(s); us of CPU per unit, less the model's own\n",
               kUnits, kParamsPerUnit, world->group().size());
    fmt::print("{:<10} {:>8} {:>9} {:>8}\n", "", "forward", "backward", "step");
  }
  double worst = 0;
  Model plain;
  for (const int stage : {0, 1, 2, 3}) {
    Model model;
    Engine engine(model, options_for(stage), {.group = &world->group()});
    const Costs own = own_costs(plain, model, engine, steps);
    worst = std::max(worst, *std::max_element(own.begin(), own.end()));
    if (shows) fmt::print("stage {:<4} {:8.1f} {:9.1f} {:8.1f}\n", stage, own[0], own[1], own[2]);
  }
  if (shows) fmt::print("largest {:.1f} us, bound {} us\n", worst, kBoundMicros);
  world->close();
  return 0;
}

void report(const std::string& text) { fmt::print(stderr, "overhead_bench: {}\n", text); }

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  return capstan::run_guarded<capstan::report>(capstan::run, argc, argv);
}
