#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>

#include "capstan/base/error.h"
#include "capstan/io/ring.h"
#include "tests/io/io_fixture.h"
#include "tests/support/faulty_queue.h"

namespace capstan::io {
namespace {

using std::chrono::milliseconds;
using test::Fault;
using testing::AllOf;
using testing::HasSubstr;

class FaultTest : public IoTest {
 protected:
  static constexpr Options kSmallBlocks{.block_bytes = 4096, .queue_depth = 4};

  // Writes and reads 20 blocks and 7 bytes through a queue with these faults.
  void expect_exact_round_trip(const test::FaultPlan& plan) {
    Ring ring(kSmallBlocks, logger_, test::with_faults(queue(kSmallBlocks), plan));
    const File file = create("data");
    AlignedBuffer out(20 * 4096 + 7);
    AlignedBuffer in(out.size_bytes());
    fill_pattern(out.bytes());
    ring.write(file, 0, out.bytes()).wait();
    EXPECT_TRUE(std::ranges::equal(file_bytes(file.path()), out.bytes()));
    ring.read(file, 0, in.bytes()).wait();
    EXPECT_TRUE(std::ranges::equal(in.bytes(), out.bytes()));
  }

  std::string message_of(PendingIo io) {
    try {
      io.wait();
    } catch (const IoError& error) {
      EXPECT_TRUE(io.done());
      EXPECT_FALSE(error.info().fix.empty());
      return error.what();
    }
    return "no error";
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, FaultTest, kAllPaths, case_name);

TEST_P(FaultTest, ShortCountsAreContinuedWhereTheyStopped) {
  for (const std::int64_t at_most : {100, 512, 1000, 4095}) {
    expect_exact_round_trip(
        [=](std::int64_t, const RawOp&) { return Fault{.at_most_bytes = at_most}; });
  }
  expect_exact_round_trip(
      [](std::int64_t n, const RawOp&) { return Fault{.at_most_bytes = n % 3 == 0 ? 1 : 0}; });
}

TEST_P(FaultTest, InterruptedAndRefusedAttemptsAreRepeated) {
  for (const int error : {EINTR, EAGAIN, ECANCELED}) {
    expect_exact_round_trip(
        [=](std::int64_t n, const RawOp&) { return Fault{.error = n % 2 == 0 ? error : 0}; });
  }
}

TEST_P(FaultTest, AWriteThatMovedNothingIsRepeated) {
  expect_exact_round_trip([](std::int64_t n, const RawOp& op) {
    return Fault{.moves_nothing = op.kind == OpKind::write && n % 2 == 0};
  });
}

TEST_P(FaultTest, AFileSystemThatTurnsDirectTransfersDownIsServedThroughTheCache) {
  const File file = create("data");
  const int direct_fd = file.descriptor()->direct_fd();
  Ring ring({}, logger_, test::with_faults(queue(), [&](std::int64_t, const RawOp& op) {
              return Fault{.error = op.fd == direct_fd ? EINVAL : 0};
            }));
  AlignedBuffer out(100 * 4096);
  fill_pattern(out.bytes());
  ring.write(file, 0, out.bytes()).wait();
  EXPECT_FALSE(file.direct());
  EXPECT_TRUE(std::ranges::equal(file_bytes(file.path()), out.bytes()));
}

TEST_P(FaultTest, AFailingDiskIsAnErrorThatNamesFileOffsetAndErrno) {
  for (const int failing : {0, 1, 7, 19}) {
    Ring ring(kSmallBlocks, logger_,
              test::with_faults(queue(kSmallBlocks), [=](std::int64_t, const RawOp& op) {
                return Fault{.error = op.offset == failing * 4096 ? EIO : 0};
              }));
    const File file = create("data");
    AlignedBuffer out(20 * 4096);
    EXPECT_THAT(message_of(ring.write(file, 0, out.bytes())),
                AllOf(HasSubstr("write of 4096 bytes failed: EIO"), HasSubstr(file.path().string()),
                      HasSubstr("offset " + std::to_string(failing * 4096)), HasSubstr("dmesg")));
    // All but that operation is still usable.
    ring.write(file, 40 * 4096, out.bytes()).wait();
  }
}

TEST_P(FaultTest, OfSeveralFailuresTheFirstInTheFileIsTold) {
  Ring ring(kSmallBlocks, logger_,
            test::with_faults(queue(kSmallBlocks), [](std::int64_t, const RawOp& op) {
              return Fault{.error = op.offset >= 4096 ? EIO : 0};
            }));
  AlignedBuffer out(20 * 4096);
  EXPECT_THAT(message_of(ring.write(create("data"), 0, out.bytes())), HasSubstr("offset 4096\n"));
}

TEST_P(FaultTest, OneFailingRequestDoesNotHarmItsNeighbours) {
  Ring ring(kSmallBlocks, logger_,
            test::with_faults(queue(kSmallBlocks), [](std::int64_t, const RawOp& op) {
              return Fault{.error = op.offset == 13 * 4096 ? ENOSPC : 0};
            }));
  const File file = create("data");
  std::vector<AlignedBuffer> buffers;
  std::vector<PendingIo> pending;
  for (std::int64_t i = 0; i < 10; ++i) {
    buffers.emplace_back(4 * 4096);
    fill_pattern(buffers.back().bytes(), i * 4 * 4096);
    pending.push_back(ring.write(file, i * 4 * 4096, buffers.back().bytes()));
  }
  for (std::size_t i = 0; i < pending.size(); ++i) {
    if (i == 3) {
      EXPECT_THAT(message_of(std::move(pending[i])),
                  AllOf(HasSubstr("ENOSPC"), HasSubstr("free space")));
    } else {
      EXPECT_NO_THROW(pending[i].wait()) << i;
    }
  }
}

TEST_P(FaultTest, AnEndlesslyBusyDeviceIsAnErrorAndNotAHang) {
  Ring ring({}, logger_, test::with_faults(queue(), [](std::int64_t, const RawOp&) {
              return Fault{.error = EAGAIN};
            }));
  AlignedBuffer out(4096);
  EXPECT_THAT(message_of(ring.write(create("data"), 0, out.bytes())), HasSubstr("EAGAIN"));
}

TEST_P(FaultTest, ASlowDiskIsAnErrorWhenTheCallerSetsALimitAndTheTransferGoesOn) {
  Ring ring({}, logger_, test::with_faults(queue(), [](std::int64_t, const RawOp&) {
              return Fault{.delay = milliseconds(300)};
            }));
  const File file = create("data");
  std::vector<std::byte> out(10000);
  fill_pattern(out);
  PendingIo io = ring.write(file, 0, out);
  try {
    io.wait_at_most(milliseconds(1));
    FAIL() << "a delayed write was done in a millisecond";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(file.path().string()), HasSubstr("1 ms")));
  }
  EXPECT_FALSE(io.done());
  io.wait();
  EXPECT_EQ(file_bytes(file.path()), out);
}

TEST_P(FaultTest, AQueueThatTakesNothingFailsEveryRequestAndHangsNone) {
  Ring ring(kSmallBlocks, logger_,
            test::with_faults(queue(kSmallBlocks), [](std::int64_t n, const RawOp&) {
              return Fault{.refused = n >= 6 ? ENXIO : 0};
            }));
  const File file = create("data");
  AlignedBuffer out(8 * 4096);
  PendingIo first = ring.write(file, 0, out.bytes());
  PendingIo second = ring.write(file, 0, out.bytes());
  EXPECT_THAT(message_of(std::move(first)), HasSubstr("ENXIO"));
  EXPECT_THAT(message_of(std::move(second)), HasSubstr("ENXIO"));
  EXPECT_THAT(message_of(ring.write(file, 0, out.bytes())), HasSubstr("ENXIO"));
}

TEST_P(FaultTest, ALostQueueFailsWhatIsInFlightAndWhatComesLater) {
  test::FaultyQueue* faulty = nullptr;
  Ring ring(
      {}, logger_,
      test::with_faults(
          queue(), [](std::int64_t, const RawOp&) { return Fault{.delay = milliseconds(100)}; },
          &faulty));
  const File file = create("data");
  auto out = std::make_shared<AlignedBuffer>(64 << 20);
  faulty->break_now();
  EXPECT_THAT(message_of(ring.write(file, 0, out->bytes(), out)), HasSubstr("queue is lost"));
  EXPECT_THROW((void)ring.write(file, 0, out->bytes()), IoError);
}

TEST_P(FaultTest, ADroppedTransferThatFailsIsToldAtClose) {
  Ring ring({}, logger_, test::with_faults(queue(), [](std::int64_t, const RawOp&) {
              return Fault{.error = EIO, .delay = milliseconds(50)};
            }));
  const File file = create("data");
  auto out = std::make_shared<AlignedBuffer>(4096);
  {
    const PendingIo dropped = ring.write(file, 0, out->bytes(), out);
  }
  ring.close();
  ASSERT_EQ(logger_.lines().size(), 2u);
  EXPECT_THAT(logger_.lines()[1], AllOf(HasSubstr("EIO"), HasSubstr(file.path().string())));
}

TEST_P(FaultTest, AFullDeviceIsENOSPC) {
  const File full = File::open("/dev/full", {.access = Access::read_write});
  Ring ring({}, logger_, queue());
  std::vector<std::byte> out(100);
  EXPECT_THAT(message_of(ring.write(full, 0, out)),
              AllOf(HasSubstr("ENOSPC"), HasSubstr("/dev/full, offset 0"), HasSubstr("df -h")));
}

TEST_P(FaultTest, WritingToAFileOpenedForReadingNamesTheFile) {
  create("data");
  const File file = File::open(folder_ / "data", {.direct = GetParam().direct});
  Ring ring({}, logger_, queue());
  std::vector<std::byte> out(100);
  EXPECT_THAT(message_of(ring.write(file, 0, out)),
              AllOf(HasSubstr("EBADF"), HasSubstr("read_write"), HasSubstr(file.path().string())));
}

// Takes operations and completes them only when it is told to.
class HungQueue final : public RawQueue {
 public:
  int depth() const override { return 4; }
  Submitted submit(std::span<const RawOp> ops) override {
    const std::lock_guard lock(mutex_);
    for (const RawOp& op : ops) held_.push_back({op.tag, op.bytes});
    return {.accepted = std::ssize(ops)};
  }
  std::int64_t wait(std::span<RawDone> out) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return answering_ && !held_.empty(); });
    out[0] = held_.back();
    held_.pop_back();
    return 1;
  }
  void answer() {
    const std::lock_guard lock(mutex_);
    answering_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RawDone> held_;
  bool answering_ = false;
};

TEST(Ring, AClosedRingGivesUpADiskThatNeverAnswersAndKeepsItsMemory) {
  const test::TempFolder folder;
  RecordingLogger logger;
  auto queue = std::make_unique<HungQueue>();
  HungQueue& disk = *queue;
  File file = File::open(folder / "x", {.access = Access::create});
  auto memory = std::make_shared<AlignedBuffer>(1 << 20);
  const std::weak_ptr<AlignedBuffer> watched = memory;
  PendingIo held;
  {
    Ring ring({.block_bytes = 4096, .close_patience = milliseconds(100)}, logger,
              {.queue = std::move(queue)});
    held = ring.write(file, 0, memory->bytes(), memory);
    EXPECT_THROW(held.wait_at_most(milliseconds(10)), IoError);
  }  // closes
  memory.reset();
  EXPECT_TRUE(held.done());
  EXPECT_THROW(held.wait(), IoError);
  EXPECT_THAT(logger.lines(), testing::Contains(HasSubstr("are given up")));
  held = {};
  EXPECT_FALSE(watched.expired()) << "the disk may still read it";
  disk.answer();
  for (int i = 0; i < 3000 && !watched.expired(); ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace capstan::io
