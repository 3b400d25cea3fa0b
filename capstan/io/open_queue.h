// Chooses how transfers reach the kernel: io_uring where it works, threads elsewhere.
#pragma once

#include <memory>
#include <string>

#include "capstan/io/options.h"
#include "capstan/io/raw_queue.h"

namespace capstan::io {

enum class IoPath { automatic, io_uring, threads };

[[nodiscard]] std::string to_string(IoPath path);

struct OpenedQueue {
  std::unique_ptr<RawQueue> queue;
  IoPath path = IoPath::threads;  // never `automatic`
  std::string why_not_uring;      // what, where and fix, when `automatic` fell back to threads
};

// Checks `options` (ConfigError). `IoPath::io_uring` insists and throws as make_uring_queue() does.
[[nodiscard]] OpenedQueue open_queue(const Options& options, IoPath wanted = IoPath::automatic);

// How many transfers these options allow at once: queue_depth for each of `threads`.
[[nodiscard]] int transfers_in_flight(const Options& options);

}  // namespace capstan::io
