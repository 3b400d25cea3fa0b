#include <cstddef>
#include <thread>

#include <gmock/gmock.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "capstan/base/error.h"
#include "capstan/io/ring.h"
#include "tests/io/io_fixture.h"

namespace capstan::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// As a container's seccomp profile does it, but for the calling thread only.
bool forbid_io_uring_to_this_thread() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(filter), .filter = filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(QueueChoice, AKernelThatRefusesIoUringIsServedByThreadsAndTheReasonIsKept) {
  const test::TempFolder folder;
  bool forbidden = false;
  std::thread([&] {
    forbidden = forbid_io_uring_to_this_thread();
    if (!forbidden) return;
    RecordingLogger logger;
    Ring ring({}, logger);
    EXPECT_EQ(ring.path(), IoPath::threads);
    EXPECT_THAT(ring.why_not_uring(),
                testing::AnyOf(AllOf(HasSubstr("EPERM"), HasSubstr("io_uring_disabled")),
                               HasSubstr("CAPSTAN_URING=ON")));
    EXPECT_ANY_THROW((void)open_queue({}, IoPath::io_uring));
    const File file = File::open(folder / "a", {.access = Access::create});
    std::vector<std::byte> out(5000);
    fill_pattern(out);
    ring.write(file, 0, out).wait();
    EXPECT_EQ(file_bytes(file.path()), out);
  }).join();
  if (!forbidden) GTEST_SKIP() << "this sandbox allows no seccomp filter";
}

TEST(QueueChoice, ThreadsCanBeAskedFor) {
  const OpenedQueue opened = open_queue({}, IoPath::threads);
  EXPECT_EQ(opened.path, IoPath::threads);
  EXPECT_EQ(opened.queue->depth(), Options{}.queue_depth);
}

TEST(QueueChoice, OptionsThatMakeNoSenseAreRefusedByName) {
  const auto message = [](const Options& options) -> std::string {
    try {
      (void)open_queue(options);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message({.queue_depth = 0}), HasSubstr("io::Options::queue_depth"));
  EXPECT_THAT(message({.threads = -1}), HasSubstr("io::Options::threads"));
  EXPECT_THAT(message({.block_bytes = 0}), HasSubstr("io::Options::block_bytes"));
}

TEST(QueueChoice, AVeryDeepQueueIsBounded) {
  EXPECT_EQ(transfers_in_flight({.queue_depth = 1 << 30, .threads = 1 << 10}), 4096);
  const OpenedQueue opened = open_queue({.queue_depth = 100000}, IoPath::threads);
  EXPECT_EQ(opened.queue->depth(), 4096);
}

}  // namespace
}  // namespace capstan::io
