// What is estimated is what is used: every tensor of real runs is counted, the engine's by its
// ledger and all of them by libtorch's allocator.
#include "capstan/tune/memory.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/engine/engine.h"
#include "capstan/models/gpt_blueprint.h"
#include "capstan/models/make_model.h"
#include "tests/support/run_ranks.h"
#include "tests/tune/counted_tensors.h"

namespace capstan::tune {
namespace {

using store::MemoryKind;

constexpr double kLargestError = 0.02;

struct Case {
  std::string name;
  int stage = 0;
  int ranks = 1;
  DType dtype = DType::fp32;
  bool recompute = false;
  bool offload = false;  // optimizer and, at stage 3, parameters in host memory
  std::int64_t micro_batches = 1;
  std::int64_t samples = 2;
  std::int64_t width = 96;
  std::int64_t layers = 4;
  std::int64_t vocab = 512;
  std::int64_t tokens = 64;
};

Workload workload_of(const Case& given) {
  Workload work;
  models::GptOptions gpt;
  gpt.vocab = given.vocab;
  gpt.context = 128;
  gpt.width = given.width;
  gpt.layers = given.layers;
  gpt.heads = 4;
  gpt.dropout = 0;
  work.model = std::make_shared<models::GptBlueprint>(gpt);
  work.tokens = given.tokens;
  work.ranks = given.ranks;
  engine::Options& options = work.options;
  options.optimizer = optim::Options{};
  options.shard.stage = given.stage;
  options.shard.persistence_threshold_elems = 1000;
  options.precision.params = given.dtype;
  options.recompute.enabled = given.recompute;
  options.batch = {.train_samples = given.samples * given.micro_batches * given.ranks,
                   .micro_samples = given.samples,
                   .accumulation_steps = given.micro_batches};
  if (given.offload) {
    options.store.optimizer.placement = store::Placement::host;
    if (given.stage == 3) options.store.params.placement = store::Placement::host;
  }
  return work;
}

struct Measured {
  std::array<std::int64_t, kPhases.size()> peaks{};
  store::MemoryUse ledger;  // peaks of a whole step
  store::MemoryUse host;
};

Measured measure(const Workload& work, comm::Group& group) {
  const std::int64_t before = test::tensor_bytes();
  const auto model = models::make_model(*work.model->with({.recompute = work.options.recompute}));
  Engine engine(models::module_of(model), work.options, {.group = &group});
  Measured seen;
  const auto see = [&](Phase phase) {
    std::int64_t& most = seen.peaks[static_cast<std::size_t>(phase)];
    most = std::max(most, test::peak_tensor_bytes() - before);
    test::reset_tensor_peak();
  };
  // The first steps teach the engine the order of use.
  for (int step = 0; step < 3; ++step) {
    seen = {};
    engine.ledger().reset_peak();
    test::reset_tensor_peak();
    see(Phase::rest);
    for (std::int64_t i = 0; i < work.options.batch.accumulation_steps; ++i) {
      const at::Tensor ids =
          at::randint(work.model->sizes().vocab, {work.options.batch.micro_samples, work.tokens},
                      at::TensorOptions(at::kLong));
      const at::Tensor loss = model->forward(ids, ids.roll(-1, 1));
      see(Phase::forward);
      engine.backward(loss);
      see(Phase::backward);
      engine.step();
      see(i + 1 == work.options.batch.accumulation_steps ? Phase::step : Phase::backward);
    }
    seen.ledger = engine.ledger().peak();
    seen.host = engine.ledger(store::Placement::host).now();
  }
  return seen;
}

std::vector<Case> cases() {
  return {
      {.name = "stage 0, one rank"},
      {.name = "stage 0, one rank, bf16", .dtype = DType::bf16},
      {.name = "recompute", .recompute = true},
      {.name = "recompute, bf16, long", .dtype = DType::bf16, .recompute = true, .tokens = 128},
      {.name = "large vocabulary", .width = 64, .layers = 2, .vocab = 5000},
      {.name = "wide", .samples = 1, .width = 256, .layers = 3, .tokens = 32},
      {.name = "two micro-batches, bf16", .dtype = DType::bf16, .micro_batches = 2},
      {.name = "stage 1, two ranks", .stage = 1, .ranks = 2},
      {.name = "stage 2, two ranks", .stage = 2, .ranks = 2},
      {.name = "stage 2, two ranks, bf16, two micro-batches",
       .stage = 2,
       .ranks = 2,
       .dtype = DType::bf16,
       .micro_batches = 2},
      {.name = "stage 3, two ranks", .stage = 3, .ranks = 2},
      {.name = "stage 3, two ranks, bf16, recompute",
       .stage = 3,
       .ranks = 2,
       .dtype = DType::bf16,
       .recompute = true},
      {.name = "stage 3, three ranks", .stage = 3, .ranks = 3, .samples = 1},
      {.name = "stage 2, offload", .stage = 2, .ranks = 2, .offload = true},
      {.name = "stage 3, offload, bf16",
       .stage = 3,
       .ranks = 2,
       .dtype = DType::bf16,
       .offload = true},
      {.name = "stage 3, one rank, offload", .stage = 3, .offload = true},
  };
}

TEST(EstimateMemory, IsWithinTwoPercentOfWhatRunsHold) {
  test::count_tensors();
  for (const Case& given : cases()) {
    const Workload work = workload_of(given);
    const MemoryEstimate said =
        estimate_memory(work, {.on_gpu = false, .threads = at::get_num_threads()});
    run_ranks(given.ranks, [&](comm::Group& group) {
      const Measured seen = measure(work, group);
      if (group.rank() != 0) return;
      for (const Phase phase : kPhases) {
        const std::int64_t used = seen.peaks[static_cast<std::size_t>(phase)];
        const double error =
            static_cast<double>(said[phase].total() - used) / static_cast<double>(used);
        const DeviceBytes& is = said[phase];
        fmt::print("{:<46} {:<14} used {:>9} said {:>9} ({:+.2f} %) p {} g {} o {} a {} w {}\n",
                   given.name, to_string(phase), used, is.total(), 100 * error, is.parameters,
                   is.gradients, is.optimizer, is.activations, is.workspace);
        EXPECT_LE(std::abs(error), kLargestError) << given.name << ", " << to_string(phase);
      }
      EXPECT_EQ(seen.host, said.host)
          << given.name << ": " << to_text(seen.host) << ", said " << to_text(said.host);
    });
  }
}

}  // namespace
}  // namespace capstan::tune
