#include "capstan/profile/event_clock.h"

#include <ATen/cuda/Sleep.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/device/facts.h"

namespace capstan::profile {
namespace {

constexpr std::int64_t kCycles = 400'000'000;  // a fifth of a second

class EventClock : public testing::Test {
 protected:
  void SetUp() override {
    if (device::list_devices().empty()) GTEST_SKIP() << "no GPU: " << device::why_no_devices();
    at::cuda::sleep(1);  // the first kernel takes its time
  }

  const std::shared_ptr<Recorder> recorder_ = make_recorder();
};

// A long kernel, timed by the test itself.
class Sleep {
 public:
  Sleep() {
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    const c10::Stream stream = guard.getStream(c10::Device(c10::kCUDA, 0));
    begin_.record(stream);
    at::cuda::sleep(kCycles);
    end_.record(stream);
  }
  bool over() const { return end_.query(); }
  std::chrono::nanoseconds time() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double, std::milli>(begin_.elapsedTime(end_)));
  }

 private:
  c10::Event begin_{c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT};
  c10::Event end_{c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT};
};

TEST_F(EventClock, TellsHowLongAKernelTookAlthoughTheHostWentOn) {
  Reader reader(recorder_, Kinds::all());
  Span span(recorder_.get(), {.name = "kernel", .device = 0});
  const Sleep kernel;
  span.end();
  {
    const Span next(recorder_.get(), {.name = "next", .device = 0});
  }
  const bool none_taken = reader.take().empty();
  const bool host_was_first = !kernel.over();  // and so it was when it closed and took the spans
  recorder_->settle();
  const std::vector<Record> records = reader.take();
  ASSERT_TRUE(kernel.over());
  ASSERT_EQ(records.size(), 2U);
  const Record& record = records.front();
  constexpr std::chrono::microseconds kRounding{5};
  EXPECT_GE(record.device.length + kRounding, kernel.time());
  if (host_was_first) {
    EXPECT_TRUE(none_taken);
    EXPECT_LT(record.host_end - record.host_begin, record.device.length);
  }
  EXPECT_GE(records[1].device.begin + kRounding, record.device.begin + record.device.length);
}

TEST_F(EventClock, LooksAtTheStreamThatIsCurrent) {
  Reader reader(recorder_, Kinds::all());
  {
    const Span before(recorder_.get(), {.name = "first mark", .device = 0});
  }
  const Sleep kernel;
  {
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    const c10::StreamGuard other(guard.getStreamFromGlobalPool(c10::Device(c10::kCUDA, 0)));
    const Span span(recorder_.get(), {.name = "beside it", .device = 0});
  }
  {
    const Span behind(recorder_.get(), {.name = "behind it", .device = 0});
  }
  recorder_->settle();
  const std::vector<Record> records = reader.take();
  ASSERT_EQ(records.size(), 3U);
  EXPECT_LT(records[1].device.length, kernel.time());
  EXPECT_LT(records[1].device.begin, records[2].device.begin);
}

}  // namespace
}  // namespace capstan::profile
