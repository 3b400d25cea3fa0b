// Asynchronous reads and writes of byte spans at file offsets, of any size and alignment.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "capstan/base/log.h"
#include "capstan/io/file.h"
#include "capstan/io/open_queue.h"
#include "capstan/io/options.h"
#include "capstan/io/pending_io.h"

namespace capstan::io {

class RingCore;

// Cuts requests into blocks and keeps the queue full in the order of the calls; continues short
// transfers, repeats interrupted ones, and leaves direct I/O where a file system turns it down.
// Requests that overlap in a file have no order among each other: wait() for the first one.
//
// Owns:    one thread that collects completions; with it, the raw queue and every request in
// flight. Threads: any number of callers.
class Ring {
 public:
  // What keeps a request's memory alive: an owner of any type (a buffer, a tensor's storage), or
  // null where the caller guarantees that the memory outlives every transfer, also those of a disk
  // that does not answer any more.
  using Keep = std::shared_ptr<const void>;

  // `logger` must outlive the ring. Throws ConfigError on options that make no sense.
  Ring(const Options& options, Logger& logger, IoPath wanted = IoPath::automatic);
  // For tests and special devices: any queue.
  Ring(const Options& options, Logger& logger, OpenedQueue opened);
  ~Ring();  // as close()
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Fills all of `into`; a file that ends earlier is an IoError.
  PendingIo read(const File& file, std::int64_t offset, std::span<std::byte> into, Keep keep = {});
  PendingIo write(const File& file, std::int64_t offset, std::span<const std::byte> from,
                  Keep keep = {});

  // Waits for everything in flight, held or dropped; logs a warning for each dropped handle and
  // for each of those that failed. Where no transfer ends for Options::close_patience the disk is
  // given up: what is left fails, and its memory is never used again. Nothing can be started
  // afterwards. One caller.
  void close();

  IoPath path() const { return path_; }
  const std::string& why_not_uring() const { return why_not_uring_; }

 private:
  PendingIo start(std::shared_ptr<Request> request);

  Logger& logger_;
  const IoPath path_;
  const std::string why_not_uring_;
  const std::chrono::milliseconds close_patience_;
  const std::shared_ptr<RingCore> core_;
  std::thread collector_;
};

}  // namespace capstan::io
