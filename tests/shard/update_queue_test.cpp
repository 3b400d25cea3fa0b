#include "capstan/shard/update_queue.h"

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

namespace capstan::shard {
namespace {

using namespace std::chrono_literals;
using GoOn = UpdateQueue::GoOn;

FreshStates fresh_of(int unit) { return {.master = at::full({1}, unit, at::kFloat)}; }

// Nothing but time says when a unit is done that nobody waits for.
void until(const std::function<bool()>& holds) {
  while (!holds()) std::this_thread::sleep_for(1ms);
}

// One thread trains; others read parameters meanwhile, as a program in Python may.
TEST(UpdateQueue, LetsSeveralThreadsWaitBesideTheOneThatStarts) {
  constexpr int kUnits = 5;
  UpdateQueue queue(kUnits, c10::kCPU);
  std::atomic<bool> stop = false;
  std::array<std::atomic<int>, kUnits> versions{};
  std::vector<std::jthread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      for (int unit = 0; !stop; unit = (unit + 1) % kUnits) queue.wait(unit);
    });
  }
  for (int round = 1; round <= 300; ++round) {
    std::vector<int> units;
    for (int unit = round % 2; unit < kUnits; ++unit) units.push_back(unit);  // not always all
    queue.start_late(units, [&](int unit) {
      ++versions[static_cast<std::size_t>(unit)];
      return store::Arrival{};
    });
    queue.wait(3);
    EXPECT_EQ(versions[3], round);
    if (round % 3 == 0) queue.wait_all();
  }
  queue.wait_all();
  EXPECT_TRUE(queue.late_idle());
  stop = true;
  EXPECT_EQ(versions[4], 300);
  EXPECT_EQ(versions[0], 150);
}

TEST(UpdateQueue, TellsWhatWentWrongToWhoeverWaits) {
  UpdateQueue queue(4, c10::kCPU);
  queue.start_late({0, 1, 2}, [](int unit) -> store::Arrival {
    if (unit == 1) throw std::runtime_error("the disk is full");
    return {};
  });
  EXPECT_NO_THROW(queue.wait(0));
  EXPECT_THROW(queue.wait(1), std::runtime_error);
  EXPECT_THROW(queue.wait(2), std::runtime_error);  // behind it
  EXPECT_THROW(queue.wait_all(), std::runtime_error);
  EXPECT_THROW(queue.start_late({0}, [](int) { return store::Arrival{}; }), std::runtime_error);
  EXPECT_EQ(queue.state(2), UpdateState::failed);
  EXPECT_NO_THROW(queue.wait(3));  // never late
}

TEST(UpdateQueue, KeepsTheOrderOfLateOnesAndWaitsForThemOneByOne) {
  UpdateQueue queue(4, c10::kCPU);
  std::vector<int> order;
  std::promise<void> go_on;
  auto allowed = go_on.get_future().share();
  queue.start_late({2, 0, 3}, [&](int unit) -> store::Arrival {
    if (unit == 3) allowed.wait();
    order.push_back(unit);
    return {};
  });
  queue.wait(0);
  EXPECT_EQ(queue.state(0), UpdateState::idle);
  EXPECT_EQ(queue.state(2), UpdateState::done);
  EXPECT_NO_THROW(queue.wait(1));  // never late
  EXPECT_FALSE(queue.late_idle());
  go_on.set_value();
  queue.wait_all();
  EXPECT_TRUE(queue.late_idle());
  EXPECT_EQ(queue.state(3), UpdateState::done);  // its values may still travel
  queue.wait(3);
  EXPECT_EQ(queue.state(3), UpdateState::idle);
  EXPECT_EQ(order, (std::vector<int>{2, 0, 3}));
}

TEST(UpdateQueue, KeepsWhatEarlyOnesMadeUntilItIsTaken) {
  UpdateQueue queue(3, c10::kCPU);
  queue.ready(0, {});  // nobody has opened it
  EXPECT_EQ(queue.state(0), UpdateState::idle);
  queue.open([](int unit, const GoOn&) { return fresh_of(unit); });
  queue.ready(2, {});
  queue.ready(1, {});
  until([&] { return queue.made(1) && queue.made(2); });
  queue.close(/*keep=*/true);
  EXPECT_EQ(queue.state(2), UpdateState::made);
  EXPECT_EQ(queue.take(2)->master.item<float>(), 2);
  EXPECT_FALSE(queue.take(2).has_value());
  EXPECT_FALSE(queue.take(0).has_value());
  // The step is taken beside the next forward: what was made is taken there.
  int taken = 0;
  queue.start_late({1, 0}, [&](int unit) -> store::Arrival {
    taken += static_cast<int>(queue.take(unit).has_value());
    return {};
  });
  queue.wait_all();
  EXPECT_EQ(taken, 1);
}

TEST(UpdateQueue, RethrowsWhatWentWrongInAnEarlyOne) {
  UpdateQueue queue(1, c10::kCPU);
  std::promise<void> called;
  queue.open([&](int, const GoOn&) -> FreshStates {
    called.set_value();
    throw std::runtime_error("no more");
  });
  queue.ready(0, {});
  called.get_future().wait();
  EXPECT_THROW(queue.close(/*keep=*/true), std::runtime_error);
  EXPECT_FALSE(queue.made(0));
  EXPECT_NO_THROW(queue.open([](int unit, const GoOn&) { return fresh_of(unit); }));
  queue.ready(0, {});
  until([&] { return queue.made(0); });
}

// A unit at work is given up where nobody wants it any more; the next one is not.
TEST(UpdateQueue, EndsEarlyOnesBeforeTheirTimeWhenTheyAreDropped) {
  for (const bool all : {true, false}) {
    UpdateQueue queue(1, c10::kCPU);
    std::promise<void> called;
    std::atomic<bool> second = false;
    queue.open([&](int unit, const GoOn& go_on) {
      if (!second) called.set_value();
      while (!second && go_on()) std::this_thread::sleep_for(1ms);
      return fresh_of(unit);
    });
    queue.ready(0, {});
    called.get_future().wait();
    if (all) {
      queue.close(/*keep=*/false);
    } else {
      queue.forget(0);
    }
    EXPECT_FALSE(queue.made(0));
    EXPECT_EQ(queue.state(0), UpdateState::idle);
    if (all) continue;
    second = true;  // the gradient changed, and is complete again
    queue.ready(0, {});
    until([&] { return queue.made(0); });
  }
}

TEST(UpdateQueue, GoesWhileUnitsWait) {
  std::atomic<int> updated = 0;
  std::promise<void> called;
  {
    UpdateQueue queue(3, c10::kCPU);
    queue.start_late({0, 1, 2}, [&](int unit) -> store::Arrival {
      if (unit == 0) called.set_value();
      ++updated;
      std::this_thread::sleep_for(20ms);
      return {};
    });
    called.get_future().wait();
  }
  EXPECT_GE(updated, 1);  // what has begun is finished
}

}  // namespace
}  // namespace capstan::shard
