// How files are read and written asynchronously.
#pragma once

#include <chrono>
#include <cstdint>

namespace capstan::io {

struct Options {
  std::int64_t block_bytes = 1 << 20;  // one request; larger is faster up to the disk's own limit
  int queue_depth = 8;                 // requests in flight; more hide latency and cost memory
  int threads = 1;                     // queue_depth requests for each of these are in flight
  bool single_submit = false;          // hand requests to the kernel one by one; slower, fairer
  bool overlap_events = true;          // collect finished requests while new ones are submitted
  // A ring that is closed gives up a disk on which no transfer ends for so long.
  std::chrono::milliseconds close_patience{60'000};
  bool operator==(const Options&) const = default;
};

}  // namespace capstan::io
