// What a checkpoint costs: each rank reads its own bytes, and a save takes its buffers and no more.
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"
#include "tests/support/temp_folder.h"

namespace capstan::test {
namespace {

// The number behind `key:` in a file of /proc; nothing where there is none.
std::optional<std::int64_t> proc_number(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::int64_t number = 0;
    if (word == key + ":" && file >> number) return number;
  }
  return std::nullopt;
}

engine::Options options_with_masters() {
  engine::Options options = fp32_options(3);
  options.precision.params = DType::bf16;
  return options;
}

void make_states(Engine& engine, SmallModel& model, int width) {
  engine.backward(loss_of(model, make_batch(4, width, kClasses, 1), at::kBFloat16));
  engine.step();
}

TEST(CheckpointCost, EachRankReadsOnlyItsBytes) {
  constexpr int kWide = 256;
  if (!proc_number("/proc/thread-self/io", "rchar")) {
    GTEST_SKIP() << "this kernel does not count what a thread reads";
  }
  const TempFolder folder;
  const auto each_rank = [&](bool saves) {
    run_ranks(4, [&](comm::Group& group) {
      SmallModel model(kWide, kBlocks, kClasses);
      Engine engine(model, options_with_masters(), {.group = &group});
      if (saves) {
        make_states(engine, model, kWide);
        engine.save_checkpoint(folder.path());
        return;
      }
      std::int64_t mine = 0;  // the master and two moments of this rank's elements
      for (const shard::UnitSpec& unit : engine.inside().sharded().plan().units) {
        mine += 3 * 4 * unit.layout.shard_elems();
      }
      const std::int64_t before = proc_number("/proc/thread-self/io", "rchar").value();
      ASSERT_TRUE(engine.load_checkpoint(folder.path()).has_value());
      const std::int64_t read = proc_number("/proc/thread-self/io", "rchar").value() - before;
      EXPECT_GT(read, mine * 9 / 10);
      EXPECT_LT(read, mine * 5 / 4) << "of which the index is a few kilobytes";
    });
  };
  each_rank(true);
  each_rank(false);
}

TEST(CheckpointCost, ASaveTakesItsBuffersAndNoMore) {
  constexpr int kWide = 1024;
  const TempFolder folder;
  run_ranks(1, [&](comm::Group& group) {
    engine::Options options = options_with_masters();
    options.checkpoint.buffer_bytes = 4 << 20;
    SmallModel model(kWide, kBlocks, kClasses);
    Engine engine(model, options, {.group = &group});
    make_states(engine, model, kWide);
    // From here on the highest is counted anew.
    std::ofstream("/proc/self/clear_refs") << 5;
    const auto before_kb = proc_number("/proc/self/status", "VmRSS");
    const auto peak_kb = proc_number("/proc/self/status", "VmHWM");
    if (!before_kb || !peak_kb || *peak_kb > *before_kb + 1024) {
      GTEST_SKIP() << "this kernel does not count the highest use of memory anew";
    }
    const engine::Saved saved = engine.save_checkpoint(folder.path());
    const std::int64_t taken =
        1024 * (proc_number("/proc/self/status", "VmHWM").value() - *before_kb);
    EXPECT_GT(saved.bytes, 150 << 20);
    EXPECT_LT(taken, 24 << 20) << "of " << saved.bytes;
  });
}

}  // namespace
}  // namespace capstan::test
