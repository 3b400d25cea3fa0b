#include "capstan/shard/late_updates.h"

#include <array>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace capstan::shard {
namespace {

// One thread trains; others read parameters meanwhile, as a program in Python may.
TEST(LateUpdates, LetSeveralThreadsWaitBesideTheOneThatStarts) {
  constexpr int kUnits = 5;
  LateUpdates late(kUnits);
  std::atomic<bool> stop = false;
  std::array<std::atomic<int>, kUnits> versions{};
  std::vector<std::jthread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      for (int unit = 0; !stop; unit = (unit + 1) % kUnits) late.wait(unit);
    });
  }
  for (int round = 1; round <= 300; ++round) {
    std::vector<int> units;
    for (int unit = round % 2; unit < kUnits; ++unit) units.push_back(unit);  // not always all
    late.start(units, [&](int unit) {
      ++versions[static_cast<std::size_t>(unit)];
      return HostTraffic::Ahead{};
    });
    late.wait(3);
    EXPECT_EQ(versions[3], round);
    if (round % 3 == 0) late.wait_all();
  }
  late.wait_all();
  EXPECT_TRUE(late.idle());
  stop = true;
  EXPECT_EQ(versions[4], 300);
  EXPECT_EQ(versions[0], 150);
}

TEST(LateUpdates, TellWhatWentWrongToWhoeverWaits) {
  LateUpdates late(3);
  late.start({0, 1, 2}, [](int unit) -> HostTraffic::Ahead {
    if (unit == 1) throw std::runtime_error("the disk is full");
    return {};
  });
  EXPECT_NO_THROW(late.wait(0));
  EXPECT_THROW(late.wait(2), std::runtime_error);
  EXPECT_THROW(late.wait_all(), std::runtime_error);
}

}  // namespace
}  // namespace capstan::shard
