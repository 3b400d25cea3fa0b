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

constexpr int kUnits = 8;
constexpr auto kCompute = 16ms;  // of a block, forward and again backward
constexpr auto kTransfer = 12ms;

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
    for (int i = 0; i < kUnits; ++i) {
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

// Sleeps last longer on a loaded machine and never shorter: one step below a limit that holds for
// every step without overlap is proof, and a disturbed try proves nothing.
bool some_step_is_below(std::chrono::nanoseconds limit, int stage, std::int64_t prefetch_bytes) {
  for (int i = 0; i < 20; ++i) {
    if (step_time(stage, prefetch_bytes, kTransfer) < limit) return true;
  }
  return false;
}

TEST(Overlap, ReductionsRunBehindBackward) {
  const auto serial = 2 * kUnits * kCompute + kUnits * kTransfer;
  EXPECT_TRUE(some_step_is_below(serial - kUnits * kTransfer / 2, 2, 0));
}

TEST(Overlap, GathersRunAheadOfUse) {
  // The last unit stays between forward and backward.
  const auto serial = 2 * kUnits * kCompute + (2 * kUnits - 1) * kTransfer;
  EXPECT_TRUE(some_step_is_below(serial - kUnits * kTransfer, 3, 1 << 20));
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
