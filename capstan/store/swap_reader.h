// Spans of swap memory, read ahead of their use into host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include <c10/core/Allocator.h>

#include "capstan/base/log.h"
#include "capstan/io/ring.h"
#include "capstan/profile/recorder.h"
#include "capstan/store/pool.h"
#include "capstan/store/stream_options.h"
#include "capstan/store/swap_files.h"

namespace capstan::store {

// Owns:    reads in flight and their buffers, until they are taken.
// Threads: one caller at a time.
class SwapReader {
 public:
  // `files`, `pool`, which is the host's, and `recorder` must outlive this. The recorder gets every
  // read, from its start until its end is seen, and every wait for one; null: nobody does.
  SwapReader(const SwapFiles& files, Pool& pool, const ReadAhead& options,
             profile::Recorder* recorder = nullptr);

  // Begins to read the span, unless that was done or the limit is reached; false: it is.
  bool read_ahead(std::span<const std::byte> span);
  // Its values. Throws IoError that names file and offset.
  c10::DataPtr take(std::span<const std::byte> span);
  // What was read and not taken may be old. Throws IoError.
  void forget();

 private:
  struct Read {
    std::shared_ptr<c10::DataPtr> memory;  // with the ring, while the disk may write to it
    io::PendingIo transfer;
    std::int64_t bytes = 0;
    profile::Span span;
  };

  Read start(std::span<const std::byte> span);
  void wait_for(Read& read);

  const SwapFiles& files_;
  Pool& pool_;
  std::int64_t limit_bytes_;
  profile::Recorder* recorder_;
  NullLogger silence_;
  io::Ring ring_;
  std::map<const std::byte*, Read> reads_;  // by where the span begins
};

}  // namespace capstan::store
