// What the engine tests have in common: options, a run of a few steps, a plain loop to compare
// with.
#pragma once

#include <functional>
#include <vector>

#include "capstan/engine/engine.h"
#include "capstan/engine/engine_state.h"
#include "tests/engine/small_model.h"
#include "tests/support/run_ranks.h"

namespace capstan::test {

constexpr int kWidth = 12;
constexpr int kBlocks = 3;
constexpr int kClasses = 7;

inline engine::Options fp32_options(int stage) {
  engine::Options options;
  options.gradient_clipping = 0;
  options.optimizer = optim::Options{.kind = optim::Kind::adamw, .hyper = {.lr = 1e-2}};
  options.shard.stage = stage;
  options.shard.persistence_threshold_elems = 13;
  options.shard.max_reuse_bytes = 0;
  return options;
}

inline std::vector<at::Tensor> masters(Engine& engine) {
  std::vector<at::Tensor> values;
  for (const shard::ParamSpec& param : engine.inside().sharded().plan().params) {
    const at::Tensor master = engine.master(param.name);
    values.push_back(master.defined() ? master : engine.parameter(param.name));
  }
  return values;
}

inline bool all_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) return false;
  }
  return true;
}

// One micro-batch: from the model and a seed that differs by rank and step, call engine.backward().
using Micro = std::function<void(Engine&, SmallModel&, std::uint64_t seed)>;

inline void plain_micro(Engine& engine, SmallModel& model, std::uint64_t seed) {
  engine.backward(loss_of(model, make_batch(4, kWidth, kClasses, seed), at::kFloat));
}

using Prepare = std::function<void(SmallModel&)>;

struct Trained {
  std::vector<at::Tensor> params;
  std::vector<engine::StepReport> reports;  // of rank 0
};

// A few steps on one rank of `group`.
Trained train_rank(comm::Group& group, const engine::Options& options, const Micro& micro,
                   const Prepare& prepare = {}, int steps = 3);
// A few steps on `world` ranks; the parameters are those of rank 0, checked equal on all.
Trained train(int world, const engine::Options& options, const Micro& micro,
              const Prepare& prepare = {}, int steps = 3);

}  // namespace capstan::test
