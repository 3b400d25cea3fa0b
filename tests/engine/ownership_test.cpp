// What an engine gives back when it goes, and what it can be handed.
#include <cstdint>
#include <fstream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include "capstan/base/text.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/foreign_backend.h"
#include "tests/support/sanitized.h"

namespace capstan::test {
namespace {

std::int64_t resident_bytes() {
  malloc_trim(0);  // what only the allocator keeps, for later, is not held by an engine
  std::ifstream statm("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

// A model and its engine come, train and go; returns what the engine held.
std::int64_t train_and_forget(comm::Group& group, int stage) {
  constexpr int kWide = 128;
  SmallModel model(kWide, 4, kClasses);
  Engine engine(model, fp32_options(stage), {.group = &group});
  engine.backward(loss_of(model, make_batch(4, kWide, kClasses, 1), at::kFloat));
  engine.step();
  return engine.ledger().now().total();
}

TEST(Memory, ComesBackWhenAnEngineGoes) {
  if (!kMeasuresMemory) GTEST_SKIP() << "the address sanitizer keeps freed memory";
  for (const int stage : {0, 3}) {
    run_ranks(1, [&](comm::Group& group) {
      for (int i = 0; i < 6; ++i) train_and_forget(group, stage);  // allocators warm up
      const std::int64_t before = resident_bytes();
      std::int64_t held = 0;
      for (int i = 0; i < 12; ++i) held = train_and_forget(group, stage);
      const std::int64_t grown = resident_bytes() - before;
      // A twelfth of what one engine holds, lost each time, would show.
      EXPECT_LT(grown, held) << "stage " << stage << ": " << format_bytes(grown) << " grown, "
                             << format_bytes(held) << " held by each of 12 engines";
    });
  }
}

TEST(Engine, TrainsOverABackendThatIsHandedInWithTheSameBits) {
  for (const int stage : {1, 3}) {
    const Trained ours = train(2, fp32_options(stage), plain_micro);
    const auto hub = comm::make_loopback_hub(2);
    std::vector<Trained> theirs(2);
    {
      std::vector<std::jthread> ranks;
      for (int rank = 0; rank < 2; ++rank) {
        ranks.emplace_back([&, rank] {
          comm::Group group(c10::make_intrusive<ForeignBackend>(comm::make_loopback(hub, rank)));
          theirs[static_cast<std::size_t>(rank)] =
              train_rank(group, fp32_options(stage), plain_micro);
        });
      }
    }
    for (const Trained& rank : theirs) EXPECT_TRUE(all_equal(ours.params, rank.params));
  }
}

}  // namespace
}  // namespace capstan::test
