#include "capstan/io/open_queue.h"

#include <algorithm>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/io/thread_queue.h"
#include "capstan/io/uring_queue.h"

namespace capstan::io {
namespace {

// Chosen: far beyond what a disk can use, far below what the kernel's ring can hold (32768).
constexpr std::int64_t kMaxInFlight = 4096;

void check(const Options& options) {
  if (options.queue_depth < 1) {
    throw ConfigError({.what = fmt::format("queue_depth is {}", options.queue_depth),
                       .where = "io::Options::queue_depth",
                       .fix = "use a number of 1 or more; 8 to 64 suits most disks"});
  }
  if (options.threads < 1) {
    throw ConfigError({.what = fmt::format("threads is {}", options.threads),
                       .where = "io::Options::threads",
                       .fix = "use a number of 1 or more"});
  }
  if (options.block_bytes < 1) {
    throw ConfigError({.what = fmt::format("block_bytes is {}", options.block_bytes),
                       .where = "io::Options::block_bytes",
                       .fix = "use a number of bytes, say 1048576"});
  }
}

}  // namespace

std::string to_string(IoPath path) {
  switch (path) {
    case IoPath::automatic:
      return "automatic";
    case IoPath::io_uring:
      return "io_uring";
    case IoPath::threads:
      return "threads";
  }
  throw InternalError({.what = "unknown IoPath"});
}

int transfers_in_flight(const Options& options) {
  const std::int64_t wanted = std::int64_t{options.queue_depth} * options.threads;
  return static_cast<int>(std::min(wanted, kMaxInFlight));
}

OpenedQueue open_queue(const Options& options, IoPath wanted) {
  check(options);
  const int depth = transfers_in_flight(options);
  OpenedQueue opened;
  if (wanted != IoPath::threads) {
    try {
      return {.queue = make_uring_queue(depth), .path = IoPath::io_uring};
    } catch (const Error& error) {
      if (wanted == IoPath::io_uring) throw;
      opened.why_not_uring = error.what();
    }
  }
  opened.queue = std::make_unique<ThreadQueue>(depth);
  opened.path = IoPath::threads;
  return opened;
}

}  // namespace capstan::io
