#include "capstan/comm/op_times.h"

#include <gtest/gtest.h>

namespace capstan::comm {
namespace {

using profile::Clock;
using std::chrono::milliseconds;

Clock::time_point at(int ms) { return Clock::time_point(milliseconds(ms)); }

// Its next mark passes at `next`, once the device has come as far as `now`.
class Device final : public profile::DeviceClock {
 public:
  std::shared_ptr<const profile::DeviceMark> mark(int) override {
    return std::make_shared<Mark>(*this, next);
  }
  int next = 0;
  int now = 0;

 private:
  struct Mark final : profile::DeviceMark {
    Mark(Device& of, int when) : device(of), ms(when) {}
    bool passed() const override { return device.now >= ms; }
    void wait() const override { device.now = std::max(device.now, ms); }
    Clock::time_point time() const override { return at(ms); }
    Device& device;
    const int ms;
  };
};

struct Exchange final : c10d::Work {
  explicit Exchange(float time) : ms(time) {}
  float getDuration() const override { return ms; }
  const float ms;
};

TEST(OpTimes, AreThoseOfItsExchangesNotOfTheWaitForThem) {
  Device device;
  device.next = 10;
  OpTimes times(&device, 0, nullptr);
  times.add(c10::make_intrusive<Exchange>(3.0F));
  times.add(c10::make_intrusive<Exchange>(2.5F));
  device.next = 90;  // the stream that waits was busy with other things
  times.end();
  device.now = 20;
  EXPECT_FALSE(times.ended());
  times.wait();
  EXPECT_TRUE(times.ended());
  EXPECT_EQ(times.read().begin, at(10));
  EXPECT_EQ(times.read().length, std::chrono::microseconds(5500));
}

TEST(OpTimes, BeginWhereTheOneBeforeEnds) {
  Device device;
  device.now = 100;
  const auto run = [&](int ready, float ms, std::shared_ptr<OpTimes> before) {
    device.next = ready;
    auto times = std::make_shared<OpTimes>(&device, 0, std::move(before));
    times->add(c10::make_intrusive<Exchange>(ms));
    times->end();
    return times;
  };
  const auto first = run(10, 6, nullptr);
  const auto second = run(11, 4, first);
  const auto third = run(50, 1, second);
  EXPECT_EQ(first->read().begin, at(10));
  EXPECT_EQ(second->read().begin, at(16));
  EXPECT_EQ(second->read().length, milliseconds(4));
  EXPECT_EQ(third->read().begin, at(50));
}

TEST(OpTimes, OfAnOperationThatWasGivenUpAreNone) {
  Device device;
  device.next = 1000;  // never comes
  OpTimes times(&device, 0, nullptr);
  times.wait();
  EXPECT_TRUE(times.ended());
  EXPECT_EQ(times.read().length.count(), 0);
}

}  // namespace
}  // namespace capstan::comm
