// Communication runs while the model computes, and its timing never changes a result.
#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace capstan::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kCompute = 8ms;  // of a block, forward and again backward
constexpr auto kTransfer = 6ms;

// Compute that takes a known time, so that a loaded machine does not matter much: it sleeps.
struct SlowBlockImpl : torch::nn::Module {
  explicit SlowBlockImpl(int width)
      : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    std::this_thread::sleep_for(kCompute);
    at::Tensor y = linear(x);
    if (y.requires_grad()) {
      y.register_hook([](const at::Tensor&) { std::this_thread::sleep_for(kCompute); });
    }
    return y;
  }
  torch::nn::Linear linear;
};

struct SlowModelImpl : torch::nn::Module {
  SlowModelImpl() {
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(register_module("b" + std::to_string(i), nn::Unit<SlowBlockImpl>(16)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<nn::Unit<SlowBlockImpl>> blocks;
};
TORCH_MODULE(SlowModel);

std::chrono::duration<double> step_time(int stage, std::int64_t prefetch_bytes,
                                        std::chrono::nanoseconds transfer) {
  std::chrono::duration<double> taken{1e9};
  RunRanksOptions slow;
  slow.loopback.delay = [transfer](const comm::OpFacts& facts) {
    return facts.elems > 64 ? transfer : 0ns;  // only whole units take time
  };
  run_ranks(
      2,
      [&](comm::Group& group) {
        engine::Options options = fp32_options(stage);
        options.shard.persistence_threshold_elems = 16;
        options.shard.prefetch_bytes = prefetch_bytes;
        SlowModel model;
        Engine engine(model, options, {.group = &group});
        for (int step = 0; step < 6; ++step) {
          const auto begin = Clock::now();
          engine.backward(model->forward(torch::ones({1, 16})).sum());
          const std::chrono::duration<double> this_step = Clock::now() - begin;
          // The order of use is known from the third step on; the best one is the least disturbed.
          if (step >= 2 && group.rank() == 0) taken = std::min(taken, this_step);
          engine.step();
        }
      },
      slow);
  return taken;
}

TEST(Overlap, ReductionsRunBehindBackward) {
  // Serially, stage 2 would take 8 transfers more than without them; behind compute, about one.
  const auto without = step_time(2, 0, 0ns);
  const auto with = step_time(2, 0, kTransfer);
  EXPECT_LT(with - without, 4 * kTransfer);
}

TEST(Overlap, GathersRunAheadOfUse) {
  const auto serial = step_time(3, 0, kTransfer);
  const auto ahead = step_time(3, 1 << 20, kTransfer);
  // 16 gathers of 6 ms; at least half of them must have vanished behind 8 ms of compute each.
  EXPECT_LT(ahead, serial - 8 * kTransfer);
}

TEST(Overlap, RandomDelaysChangeNoResult) {
  const Trained reference = train(3, fp32_options(3), plain_micro);
  for (const int stage : {0, 2, 3}) {
    for (unsigned seed = 0; seed < 3; ++seed) {
      RunRanksOptions slow;
      auto random = std::make_shared<std::mt19937>(seed);
      slow.loopback.delay = [random](const comm::OpFacts&) -> std::chrono::nanoseconds {
        return std::chrono::microseconds((*random)() % 500);
      };
      std::vector<at::Tensor> params;
      run_ranks(
          3,
          [&](comm::Group& group) {
            SmallModel model(kWidth, kBlocks, kClasses);
            fill(*model, 11);
            Engine engine(model, fp32_options(stage), {.group = &group});
            for (int step = 0; step < 3; ++step) {
              plain_micro(engine, model,
                          static_cast<std::uint64_t>(1000 + 10 * step + group.rank()));
              engine.step();
            }
            const std::vector<at::Tensor> mine = masters(engine);
            if (group.rank() == 0) params = mine;
          },
          slow);
      EXPECT_TRUE(all_equal(reference.params, params)) << "stage " << stage << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace capstan::test
