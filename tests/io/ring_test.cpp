#include "capstan/io/ring.h"

#include <algorithm>
#include <random>
#include <thread>

#include <gmock/gmock.h>

#include "capstan/base/error.h"
#include "tests/io/io_fixture.h"
#include "tests/support/faulty_queue.h"

namespace capstan::io {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

class RingTest : public IoTest {};
INSTANTIATE_TEST_SUITE_P(Paths, RingTest, kAllPaths, case_name);

constexpr std::int64_t kMiB = 1 << 20;

TEST_P(RingTest, BringsBackEverySizeAtEveryOffset) {
  Ring ring({.block_bytes = 64 << 10}, logger_, queue());
  const File file = create("data");
  for (const std::int64_t bytes :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{511}, std::int64_t{512}, std::int64_t{513},
        std::int64_t{4095}, std::int64_t{4096}, std::int64_t{4097}, 3 * kMiB + 3}) {
    for (const std::int64_t offset : {0, 1, 511, 4096, 4097}) {
      for (const std::size_t shift : {0, 1}) {  // 1: memory that direct I/O cannot use
        AlignedBuffer out(bytes + 1);
        AlignedBuffer in(bytes + 1);
        const auto size = static_cast<std::size_t>(bytes);
        fill_pattern(out.bytes(), offset + bytes);
        std::ranges::fill(in.bytes(), std::byte{0});
        ring.write(file, offset, out.bytes().subspan(shift, size)).wait();
        ring.read(file, offset, in.bytes().subspan(shift, size)).wait();
        ASSERT_TRUE(
            std::ranges::equal(out.bytes().subspan(shift, size), in.bytes().subspan(shift, size)))
            << bytes << " bytes at " << offset << ", memory shifted by " << shift;
      }
    }
  }
}

TEST_P(RingTest, TouchesNoByteOutsideTheSpan) {
  Ring ring({}, logger_, queue());
  File file = create("data");
  AlignedBuffer base(3 * 4096);
  fill_pattern(base.bytes());
  ring.write(file, 0, base.bytes()).wait();
  const std::vector<std::byte> patch(5000, std::byte{0xee});
  ring.write(file, 4095, patch).wait();
  file.sync();
  const std::vector<std::byte> now = file_bytes(file.path());
  ASSERT_EQ(std::ssize(now), 3 * 4096);
  for (std::int64_t i = 0; i < 3 * 4096; ++i) {
    const bool patched = i >= 4095 && i < 4095 + 5000;
    ASSERT_EQ(now[static_cast<std::size_t>(i)], patched ? std::byte{0xee} : pattern(i)) << i;
  }
}

TEST_P(RingTest, KeepsManyRequestsOfAllSizesApart) {
  Ring ring({.block_bytes = 16 << 10, .queue_depth = 16}, logger_, queue());
  const File file = create("data");
  std::mt19937 random(7);
  std::uniform_int_distribution<std::int64_t> sizes(1, 60000);
  struct Part {
    std::int64_t offset = 0;
    std::vector<std::byte> bytes;
  };
  std::vector<Part> parts(300);
  std::int64_t end = 0;
  for (Part& part : parts) {
    part.offset = end;
    part.bytes.resize(static_cast<std::size_t>(sizes(random)));
    fill_pattern(part.bytes, part.offset);
    end += std::ssize(part.bytes);
  }
  std::ranges::shuffle(parts, random);
  std::vector<PendingIo> pending;
  for (const Part& part : parts) pending.push_back(ring.write(file, part.offset, part.bytes));
  for (PendingIo& io : pending) io.wait();

  AlignedBuffer whole(end);
  ring.read(file, 0, whole.bytes()).wait();
  for (std::int64_t i = 0; i < end; ++i) {
    ASSERT_EQ(whole.bytes()[static_cast<std::size_t>(i)], pattern(i)) << i;
  }
}

TEST_P(RingTest, ServesThreadsThatEndBeforeTheirRequests) {
  // The kernel cancels what an ending thread has submitted; the ring must submit it again.
  Ring ring({.block_bytes = 8 << 10, .queue_depth = 4}, logger_, queue());
  const File file = create("data");
  constexpr int kThreads = 8;
  constexpr std::int64_t kBytes = 300001;
  std::vector<std::vector<std::byte>> data(kThreads);
  std::vector<PendingIo> pending(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const std::int64_t offset = static_cast<std::int64_t>(i) * kBytes;
      data[i].resize(kBytes);
      fill_pattern(data[i], offset);
      pending[i] = ring.write(file, offset, data[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (PendingIo& io : pending) io.wait();
  const std::vector<std::byte> now = file_bytes(file.path());
  ASSERT_EQ(std::ssize(now), kThreads * kBytes);
  for (std::int64_t i = 0; i < std::ssize(now); ++i) {
    ASSERT_EQ(now[static_cast<std::size_t>(i)], pattern(i)) << i;
  }
}

TEST_P(RingTest, FinishesAnEmptyRequestAtOnce) {
  Ring ring({}, logger_, queue());
  PendingIo io = ring.read(create("data"), 12345, {});
  EXPECT_TRUE(io.done());
  io.wait();
}

TEST_P(RingTest, SaysWhereAFileEndedTooEarly) {
  Ring ring({}, logger_, queue());
  const File file = create("data");
  const std::vector<std::byte> short_file(5000);
  ring.write(file, 0, short_file).wait();
  AlignedBuffer into(8192);
  PendingIo io = ring.read(file, 0, into.bytes());
  try {
    io.wait();
    FAIL() << "the read reached past the end of the file";
  } catch (const IoError& error) {
    EXPECT_THAT(error.info().where, HasSubstr(file.path().string() + ", offset 5000"));
    EXPECT_THAT(error.info().what, HasSubstr("3192 bytes too early"));
    EXPECT_FALSE(error.info().fix.empty());
  }
  EXPECT_TRUE(io.done());
}

TEST_P(RingTest, KeepsTheFileOpenUntilItsRequestsAreDone) {
  Ring ring({}, logger_, test::with_faults(queue(), [](std::int64_t, const RawOp&) {
              return test::Fault{.delay = milliseconds(50)};
            }));
  std::vector<std::byte> data(10000);
  fill_pattern(data);
  PendingIo io;
  std::filesystem::path path;
  {
    const File file = create("data");
    path = file.path();
    io = ring.write(file, 0, data);
  }
  const File other = create("other");  // would receive the freed descriptor number
  io.wait();
  EXPECT_EQ(file_bytes(path), data);
  EXPECT_EQ(other.size_bytes(), 0);
}

TEST_P(RingTest, ADroppedHandleKeepsItsMemoryUntilTheRingHasDrainedIt) {
  const File file = create("data");
  auto buffer = std::make_shared<AlignedBuffer>(100000);
  fill_pattern(buffer->bytes());
  const std::weak_ptr<AlignedBuffer> alive = buffer;
  Ring ring({}, logger_, test::with_faults(queue(), [](std::int64_t, const RawOp&) {
              return test::Fault{.delay = milliseconds(100)};
            }));
  {
    const PendingIo io = ring.write(file, 0, buffer->bytes(), buffer);
    buffer.reset();
  }
  EXPECT_FALSE(alive.expired()) << "freed while the kernel may still read it";
  ring.close();
  EXPECT_EQ(file.size_bytes(), 100000);
  ASSERT_EQ(logger_.lines().size(), 1u);
  EXPECT_THAT(logger_.lines()[0], HasSubstr("100000 bytes at offset 0 of " + file.path().string()));
}

TEST_P(RingTest, CloseFinishesWhatIsHeldAndRefusesWhatComesLater) {
  const File file = create("data");
  std::vector<std::byte> data(3 * kMiB);
  PendingIo held;
  {
    Ring ring({}, logger_, queue());
    held = ring.write(file, 0, data);
    ring.close();
    EXPECT_TRUE(held.done());
    EXPECT_THROW((void)ring.write(file, 0, data), InternalError);
  }
  held.wait();
  EXPECT_THAT(logger_.lines(), testing::IsEmpty());
}

TEST_P(RingTest, NeverHasMoreInFlightThanTheQueueIsDeep) {
  const auto no_faults = [](std::int64_t, const RawOp&) { return test::Fault{}; };
  for (const bool overlap : {true, false}) {
    for (const bool single : {true, false}) {
      const Options options{.block_bytes = 4096,
                            .queue_depth = 3,
                            .threads = 2,
                            .single_submit = single,
                            .overlap_events = overlap};
      test::FaultyQueue* counter = nullptr;
      Ring ring(options, logger_, test::with_faults(queue(options), no_faults, &counter));
      const File file = create("data");
      AlignedBuffer out(40 * 4096);
      fill_pattern(out.bytes());
      ring.write(file, 0, out.bytes()).wait();
      EXPECT_EQ(counter->count(), 40);
      EXPECT_EQ(counter->most_in_flight(), 6);
      EXPECT_TRUE(std::ranges::equal(file_bytes(file.path()), out.bytes()));
    }
  }
}

}  // namespace
}  // namespace capstan::io
