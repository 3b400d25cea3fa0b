#include "capstan/profile/recorder.h"

#include <set>
#include <thread>

#include <gmock/gmock.h>

#include "tests/support/fuzz.h"

namespace capstan::profile {
namespace {

using std::chrono::nanoseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A device that comes to its next mark when it is told to.
class SlowDevice final : public DeviceClock {
 public:
  std::shared_ptr<const DeviceMark> mark(int device) override {
    devices.push_back(device);
    return std::make_shared<Mark>(*this, ++marks_);
  }
  // All marks up to now have passed; mark n at n ms.
  void catch_up() { passed_ = marks_; }

  std::vector<int> devices;

 private:
  class Mark final : public DeviceMark {
   public:
    Mark(SlowDevice& device, int number) : device_(device), number_(number) {}
    bool passed() const override { return number_ <= device_.passed_; }
    void wait() const override { device_.passed_ = std::max(device_.passed_, number_); }
    Clock::time_point time() const override {
      EXPECT_TRUE(passed()) << "read before it has passed";
      return Clock::time_point(std::chrono::milliseconds(number_));
    }

   private:
    SlowDevice& device_;
    const int number_;
  };
  int marks_ = 0;
  int passed_ = 0;
};

std::vector<std::string> names_of(const std::vector<Record>& records) {
  std::vector<std::string> names;
  names.reserve(records.size());
  for (const Record& record : records) names.emplace_back(record.name);
  return names;
}

TEST(Recorder, RecordsAndAllocatesNothingWhileNobodyReads) {
  Recorder recorder(std::make_shared<SlowDevice>());
  Recorder* const none = nullptr;
  test::reset_peak_memory();
  const std::int64_t before = test::peak_memory();
  for (int i = 0; i < 1000; ++i) {
    const Span span(&recorder, {.name = "a",
                                .unit = "a unit with a name too long to be kept inside",
                                .kind = Kind::gather,
                                .bytes = 8,
                                .device = 0});
    const Span null(none, {.name = "b", .kind = Kind::io});
    Span moved = Span(&recorder, {.name = "c"});
    moved.end();
  }
  EXPECT_EQ(test::peak_memory(), before);
  const Reader reader(std::make_shared<Recorder>(), Kinds::all());
  EXPECT_GT(test::peak_memory(), before) << "nothing is counted";
}

TEST(Recorder, RecordsWhatIsReadWithItsFacts) {
  const auto recorder = std::make_shared<Recorder>();
  Reader reader(recorder, {Kind::gather, Kind::io});
  {
    const Span span(recorder.get(), {.name = "sum", .kind = Kind::compute});
  }
  {
    std::string unit = "block 3";
    const Span span(recorder.get(), {.name = "all_gather",
                                     .unit = unit,
                                     .kind = Kind::gather,
                                     .bytes = 4096,
                                     .detail = "of 1024 fp32"});
    unit = "changed";
  }
  const std::vector<Record> records = reader.take();
  ASSERT_EQ(records.size(), 1U);
  const Record& record = records.front();
  EXPECT_EQ(record.name, "all_gather");
  EXPECT_EQ(record.unit, "block 3");
  EXPECT_EQ(record.detail, "of 1024 fp32");
  EXPECT_EQ(record.kind, Kind::gather);
  EXPECT_EQ(record.bytes, 4096);
  EXPECT_EQ(record.thread, std::this_thread::get_id());
  EXPECT_LE(record.host_begin, record.host_end);
  EXPECT_EQ(record.device.begin, record.host_begin);
  EXPECT_EQ(record.device.length, record.host_end - record.host_begin);
  EXPECT_THAT(reader.take(), IsEmpty());
}

TEST(Recorder, AnInnerSpanLiesWithinTheOuterOneAndComesFirst) {
  const auto recorder = std::make_shared<Recorder>();
  Reader reader(recorder, Kinds::all());
  {
    const Span outer(recorder.get(), {.name = "outer", .kind = Kind::phase});
    {
      const Span inner(recorder.get(), {.name = "inner"});
    }
  }
  const std::vector<Record> records = reader.take();
  ASSERT_THAT(names_of(records), ElementsAre("inner", "outer"));
  EXPECT_LE(records[1].host_begin, records[0].host_begin);
  EXPECT_GE(records[1].host_end, records[0].host_end);
}

TEST(Recorder, ASpanEndsOnceWhateverHappensToItsObject) {
  const auto recorder = std::make_shared<Recorder>();
  Reader reader(recorder, Kinds::all());
  {
    Span first(recorder.get(), {.name = "first"});
    Span second = std::move(first);
    second = Span(recorder.get(), {.name = "second"});  // ends the first
    EXPECT_THAT(names_of(reader.take()), ElementsAre("first"));
    second.end();
    second.end();
    Span dropped(recorder.get(), {.name = "dropped"});
    dropped.drop();
    Span renamed(recorder.get(), {.name = "?"});
    renamed.end_as("renamed");
  }
  EXPECT_THAT(names_of(reader.take()), ElementsAre("second", "renamed"));
}

TEST(Recorder, TheDevicesTimeIsTakenFromTheDeviceAndNeverWaitedForUnasked) {
  const auto device = std::make_shared<SlowDevice>();
  const auto recorder = std::make_shared<Recorder>(device);
  Reader reader(recorder, Kinds::all());
  {
    const Span span(recorder.get(), {.name = "kernel", .device = 3});
  }
  {
    const Span span(recorder.get(), {.name = "on the host"});
  }
  EXPECT_THAT(device->devices, ElementsAre(3, 3));
  EXPECT_THAT(reader.take(), IsEmpty()) << "the device is at work, and order is kept";
  device->catch_up();
  const std::vector<Record> records = reader.take();
  ASSERT_THAT(names_of(records), ElementsAre("kernel", "on the host"));
  EXPECT_EQ(records[0].device.begin, Clock::time_point(std::chrono::milliseconds(1)));
  EXPECT_EQ(records[0].device.length, std::chrono::milliseconds(1));
  EXPECT_EQ(records[1].device.length, records[1].host_end - records[1].host_begin);
}

TEST(Recorder, SettlingWaitsForWhatIsClosed) {
  const auto recorder = std::make_shared<Recorder>(std::make_shared<SlowDevice>());
  Reader reader(recorder, Kinds::all());
  const Span open(recorder.get(), {.name = "open", .device = 0});
  {
    const Span span(recorder.get(), {.name = "closed", .device = 0});
  }
  EXPECT_THAT(reader.take(), IsEmpty());
  recorder->settle();
  EXPECT_THAT(names_of(reader.take()), ElementsAre("closed"));
}

TEST(Recorder, EveryReaderGetsItsKindsUntilItGoes) {
  const auto recorder = std::make_shared<Recorder>();
  const auto span = [&](std::string_view name, Kind kind) {
    const Span recorded(recorder.get(), {.name = name, .kind = kind});
  };
  Reader all(recorder, Kinds::all());
  {
    Reader io(recorder, {Kind::io});
    span("read", Kind::io);
    span("sum", Kind::compute);
    EXPECT_THAT(names_of(io.take()), ElementsAre("read"));
    EXPECT_THAT(names_of(all.take()), ElementsAre("read", "sum"));
  }
  EXPECT_TRUE(recorder->records(Kind::io));
  {
    const Reader other(std::make_shared<Recorder>(), {Kind::copy});
    span("write", Kind::io);
  }
  EXPECT_THAT(names_of(all.take()), ElementsAre("write"));
}

TEST(Recorder, KeepsTheNewestForAReaderThatDoesNotComeAndSaysHowManyWent) {
  const auto recorder = std::make_shared<Recorder>();
  Reader reader(recorder, {Kind::io});
  for (std::size_t i = 0; i < Reader::kMaxRecords + 3; ++i) {
    const Span span(recorder.get(),
                    {.name = "read", .kind = Kind::io, .bytes = static_cast<std::int64_t>(i)});
  }
  const std::vector<Record> records = reader.take();
  ASSERT_EQ(records.size(), Reader::kMaxRecords);
  EXPECT_EQ(records.front().bytes, 3);
  EXPECT_EQ(reader.take_dropped(), 3);
  EXPECT_EQ(reader.take_dropped(), 0);
}

TEST(Recorder, StopsWithItsLastReader) {
  const auto recorder = std::make_shared<Recorder>();
  EXPECT_FALSE(recorder->records(Kind::phase));
  {
    const Reader reader(recorder, {Kind::phase});
    EXPECT_TRUE(recorder->records(Kind::phase));
    EXPECT_FALSE(recorder->records(Kind::io));
  }
  EXPECT_FALSE(recorder->records(Kind::phase));
}

TEST(Kind, IsFoundByItsName) {
  EXPECT_EQ(to_string(Kind::phase), "phase");
  EXPECT_EQ(to_string(Kind::io), "io");
  EXPECT_EQ(kind_named("io"), Kind::io);
  EXPECT_EQ(kind_named("exchange"), Kind::exchange);
  EXPECT_EQ(kind_named("nothing"), std::nullopt);
}

TEST(Recorder, TakesSpansFromSeveralThreads) {
  const auto recorder = std::make_shared<Recorder>();
  Reader reader(recorder, Kinds::all());
  constexpr int kThreads = 4;
  constexpr int kSpans = 500;
  std::vector<Record> records;
  const auto take = [&] {
    for (Record& record : reader.take()) records.push_back(std::move(record));
  };
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&] {
        for (int i = 0; i < kSpans; ++i) {
          const Span span(recorder.get(), {.name = "work", .kind = Kind::update, .bytes = 1});
        }
      });
    }
    for (int i = 0; i < 100; ++i) {
      take();
      recorder->settle();
    }
  }
  take();
  std::set<std::thread::id> seen;
  std::int64_t bytes = 0;
  for (const Record& record : records) {
    seen.insert(record.thread);
    bytes += record.bytes;
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kThreads));
  EXPECT_EQ(bytes, kThreads * kSpans);
}

}  // namespace
}  // namespace capstan::profile
