// The calls through which a checkpoint reaches the disk; tests put faults in between.
#pragma once

#include <functional>

#include "capstan/io/durable.h"
#include "capstan/io/open_queue.h"
#include "capstan/io/options.h"

namespace capstan::checkpoint {

struct Disk {
  io::DurableCalls& calls;                                        // small files, fsync, rename
  std::function<io::OpenedQueue(const io::Options&)> open_queue;  // tensors
};

// The system's own. `calls` must outlive the result.
inline Disk system_disk(io::DurableCalls& calls) {
  return {calls, [](const io::Options& options) { return io::open_queue(options); }};
}

}  // namespace capstan::checkpoint
