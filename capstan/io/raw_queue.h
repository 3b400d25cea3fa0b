// The seam between io/ and the kernel: raw transfers go in, byte counts or errnos come out.
// Implemented by io_uring and by a pool of threads; tests put faults in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace capstan::io {

enum class OpKind { read, write };

// One pread or pwrite. The memory stays untouched by its owner until the completion is out.
struct RawOp {
  OpKind kind = OpKind::read;
  int fd = -1;
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;
  std::uint64_t tag = 0;  // comes back in the completion
};

struct RawDone {
  std::uint64_t tag = 0;
  std::int64_t result = 0;  // bytes moved, possibly fewer than asked for; or -errno
};

// The first `accepted` operations of a batch are in flight; the rest never started, for `error`.
struct Submitted {
  std::int64_t accepted = 0;
  int error = 0;
};

// Threads: submit() from one thread at a time; wait() from one thread at a time; the two may
//          overlap. At most depth() operations are in flight.
class RawQueue {
 public:
  virtual ~RawQueue() = default;
  virtual int depth() const = 0;
  virtual Submitted submit(std::span<const RawOp> ops) = 0;
  // Blocks until at least one operation has finished; fills `out` from the front and returns how
  // many. Only called while something is in flight. Throws InternalError if the queue is broken.
  virtual std::int64_t wait(std::span<RawDone> out) = 0;
};

}  // namespace capstan::io
