// The threads that share one loop: every part once, and nobody waits for a thread that is held up.
#include "capstan/optim/cpu/worker_pool.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace capstan::optim {
namespace {

using namespace std::chrono_literals;

TEST(WorkerPool, CallsEveryPartOnceInEveryOfManyJobs) {
  WorkerPool pool(3);
  for (int parts = 0; parts < 40; ++parts) {
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(parts));
    pool.run(parts, [&](int part) { ++calls[static_cast<std::size_t>(part)]; });
    for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
  }
}

TEST(WorkerPool, LeavesThePartsOfAThreadThatIsHeldUpToTheOthers) {
  constexpr int kParts = 8;
  WorkerPool pool(2);
  std::atomic<int> others = 0;
  pool.run(kParts, [&](int part) {
    if (part != 0) {
      ++others;
      return;
    }
    const auto give_up = std::chrono::steady_clock::now() + 20s;
    while (others < kParts - 1 && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(others, kParts - 1);
  });
}

}  // namespace
}  // namespace capstan::optim
