// The state of one read or write while its pieces travel. Private to io/.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "capstan/base/error.h"
#include "capstan/io/file.h"
#include "capstan/io/raw_queue.h"

namespace capstan::io {

// Threads: the const part is free to read; the rest is guarded by the ring's mutex until `done`,
//          and never changes after it.
struct Request {
  const OpKind kind;
  const std::shared_ptr<Descriptor> file;
  const std::int64_t offset;
  std::byte* const data;  // written to only by reads
  const std::int64_t bytes;
  const std::shared_ptr<const void> keep;

  std::int64_t handed_out = 0;     // bytes that became pieces; set to `bytes` after a failure
  std::int64_t pieces_open = 0;    // in the queue or waiting for a retry
  std::int64_t failed_offset = 0;  // in the file, of the failure that is kept
  std::optional<IoError> failure;  // the one with the lowest offset
  bool dropped = false;
  std::atomic<bool> done{false};
};

}  // namespace capstan::io
