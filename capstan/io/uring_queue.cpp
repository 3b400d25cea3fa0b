#include "capstan/io/uring_queue.h"

#include <cerrno>
#include <chrono>
#include <thread>

#include <fmt/format.h>
#include <liburing.h>

#include "capstan/base/error.h"
#include "capstan/io/failure.h"

namespace capstan::io {
namespace {

// Chosen: the kernel is out of request memory for longer than this only when it is in real trouble.
constexpr std::chrono::seconds kSubmitPatience{10};

IoError uring_refused(std::string_view step, int error_number) {
  std::string fix = "use a kernel of 5.6 or newer; until then threads do the I/O";
  if (error_number == EPERM || error_number == EACCES) {
    fix =
        "sysctl -w kernel.io_uring_disabled=0, and allow io_uring in the container's seccomp "
        "profile; until then threads do the I/O";
  } else if (error_number == ENOMEM) {
    fix = "raise the locked-memory limit (ulimit -l unlimited), or lower queue_depth";
  }
  return IoError({.what = fmt::format("{} failed: {}", step, errno_text(error_number)),
                  .where = "io_uring",
                  .fix = std::move(fix)});
}

// Owns:    one kernel ring.
// Threads: see RawQueue: submit() touches only the submission side, wait() only the completions.
class UringQueue final : public RawQueue {
 public:
  explicit UringQueue(int depth) : depth_(depth) {
    const int result = io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0);
    if (result < 0) throw uring_refused("io_uring_setup", -result);
    try {
      prove_it_works();
    } catch (...) {
      io_uring_queue_exit(&ring_);
      throw;
    }
  }
  ~UringQueue() override { io_uring_queue_exit(&ring_); }
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;

  int depth() const override { return depth_; }

  Submitted submit(std::span<const RawOp> ops) override {
    if (broken_ != 0) return {.accepted = 0, .error = broken_};
    for (const RawOp& op : ops) prepare(op);
    return flush(static_cast<std::int64_t>(ops.size()));
  }

  std::int64_t wait(std::span<RawDone> out) override {
    io_uring_cqe* first = nullptr;
    int result = 0;
    do {
      result = io_uring_wait_cqe(&ring_, &first);
    } while (result == -EINTR || result == -EAGAIN);
    if (result < 0) {
      throw InternalError({.what = "io_uring_wait_cqe failed: " + errno_text(-result)});
    }
    std::int64_t count = 0;
    unsigned head = 0;
    io_uring_cqe* done = nullptr;
    io_uring_for_each_cqe(&ring_, head, done) {
      if (count == std::ssize(out)) break;
      out[static_cast<std::size_t>(count++)] = {.tag = done->user_data, .result = done->res};
    }
    io_uring_cq_advance(&ring_, static_cast<unsigned>(count));
    return count;
  }

 private:
  // A sandbox may allow the setup and forbid the rest, and kernels before 5.6 have the ring but not
  // these operations: one empty round trip and the kernel's own list tell.
  void prove_it_works() {
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool known = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    io_uring_free_probe(probe);
    if (!known) throw uring_refused("the kernel's list of io_uring operations", ENOSYS);
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    const int result = io_uring_submit_and_wait(&ring_, 1);
    if (result < 0) throw uring_refused("io_uring_enter", -result);
    io_uring_cqe* done = nullptr;
    if (io_uring_peek_cqe(&ring_, &done) == 0) io_uring_cqe_seen(&ring_, done);
  }

  void prepare(const RawOp& op) {
    // Never null: the ring has depth_ entries, and flush() leaves none behind.
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    const auto bytes = static_cast<unsigned>(op.bytes);
    const auto offset = static_cast<std::uint64_t>(op.offset);
    if (op.kind == OpKind::read) {
      io_uring_prep_read(entry, op.fd, op.data, bytes, offset);
    } else {
      io_uring_prep_write(entry, op.fd, op.data, bytes, offset);
    }
    io_uring_sqe_set_data64(entry, op.tag);
  }

  Submitted flush(std::int64_t count) {
    const auto give_up = std::chrono::steady_clock::now() + kSubmitPatience;
    std::int64_t accepted = 0;
    while (accepted < count) {
      const int result = io_uring_submit(&ring_);
      if (result > 0) {
        accepted += result;
        continue;
      }
      const bool passing = result == 0 || result == -EAGAIN || result == -EBUSY || result == -EINTR;
      if (!passing || std::chrono::steady_clock::now() > give_up) {
        // The entries that were not taken stay in the ring; it must never be entered again.
        broken_ = result == 0 ? EAGAIN : -result;
        return {.accepted = accepted, .error = broken_};
      }
      if (result != -EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {.accepted = accepted};
  }

  const int depth_;
  io_uring ring_{};
  int broken_ = 0;  // errno of the submission that broke the ring
};

}  // namespace

std::unique_ptr<RawQueue> make_uring_queue(int depth) {
  return std::make_unique<UringQueue>(depth);
}

}  // namespace capstan::io
