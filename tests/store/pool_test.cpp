#include "capstan/store/pool.h"

#include <array>
#include <memory>
#include <new>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::store {
namespace {

TEST(Pool, CountsWhatIsOutAndReusesWhatCameBack) {
  Ledger ledger;
  Pool pool(c10::kCPU, ledger);
  void* first = nullptr;
  {
    const c10::DataPtr block = pool.take(1000, MemoryKind::gradients);
    first = block.get();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0U);
    EXPECT_EQ(ledger.now()[MemoryKind::gradients], 1000);
    EXPECT_EQ(pool.idle_bytes(), 0);
  }
  EXPECT_EQ(ledger.now().total(), 0);
  EXPECT_EQ(ledger.peak_total(), 1000);
  EXPECT_EQ(pool.idle_bytes(), 1000);
  const c10::DataPtr again = pool.take(990, MemoryKind::parameters);
  EXPECT_EQ(again.get(), first);
  EXPECT_EQ(ledger.now()[MemoryKind::parameters], 990);
}

TEST(Pool, DoesNotWasteABigBlockOnASmallRequest) {
  Ledger ledger;
  Pool pool(c10::kCPU, ledger);
  {
    const c10::DataPtr big = pool.take(1 << 20, MemoryKind::parameters);
  }
  const c10::DataPtr small = pool.take(64, MemoryKind::parameters);
  EXPECT_EQ(pool.idle_bytes(), 1 << 20);
  pool.trim();
  EXPECT_EQ(pool.idle_bytes(), 0);
}

// As a model's parameters do that outlive the engine.
TEST(Pool, ABlockMayOutliveThePoolAndTheLedger) {
  alignas(Ledger) std::array<unsigned char, sizeof(Ledger)> memory{};
  auto* const ledger = new (memory.data()) Ledger;
  auto pool = std::make_unique<Pool>(c10::kCPU, *ledger);
  c10::DataPtr block = pool->take(4096, MemoryKind::parameters);
  pool.reset();
  ledger->~Ledger();
  memory.fill(0);
  static_cast<char*>(block.get())[4095] = 1;
  block.clear();
  EXPECT_THAT(memory, testing::Each(0)) << "somebody wrote into a ledger that is gone";
}

TEST(Pool, SaysWhatHoldsHowMuchWhenMemoryIsOut) {
  Ledger ledger;
  Pool pool(c10::kCPU, ledger);
  const c10::DataPtr held = pool.take(2048, MemoryKind::optimizer);
  try {
    const c10::DataPtr block = pool.take(std::int64_t{1} << 60, MemoryKind::gradients);
    FAIL() << "2^60 bytes were given";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.info().where.find("optimizer 2 KiB"), std::string::npos) << error.what();
    EXPECT_NE(error.info().what.find("gradients"), std::string::npos);
  }
}

}  // namespace
}  // namespace capstan::store
