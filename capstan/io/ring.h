// Asynchronous reads and writes of byte spans at file offsets, of any size and alignment.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "capstan/base/log.h"
#include "capstan/io/file.h"
#include "capstan/io/open_queue.h"
#include "capstan/io/options.h"
#include "capstan/io/pending_io.h"
#include "capstan/io/split.h"

namespace capstan::io {

// Cuts requests into blocks and keeps the queue full in the order of the calls; continues short
// transfers, repeats interrupted ones, and leaves direct I/O where a file system turns it down.
// Requests that overlap in a file have no order among each other: wait() for the first one.
//
// Owns:    the raw queue, one thread that collects completions, and every request in flight.
// Threads: any number of callers.
class Ring {
 public:
  // What keeps a request's memory alive: an owner of any type (a buffer, a tensor's storage), or
  // null where the caller guarantees that the memory outlives the ring.
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
  // for each of those that failed. Nothing can be started afterwards. One caller.
  void close();

  IoPath path() const { return path_; }
  const std::string& why_not_uring() const { return why_not_uring_; }

 private:
  friend class PendingIo;
  struct Slot {  // one piece in the raw queue, by tag
    std::shared_ptr<Request> request;
    Piece piece;
    int attempts = 0;  // in a row without progress
  };

  PendingIo start(std::shared_ptr<Request> request);
  void collect();     // the thread's body
  void fill_queue();  // the rest: with mutex_ held
  void submit(std::span<const RawOp> batch);
  bool next_slot(Slot& slot);
  RawOp raw_op(const Slot& slot, std::uint64_t tag) const;
  void finish_piece(const RawDone& done);
  void retry_or_fail(Slot slot, int error_number);
  void finish_if_done(const std::shared_ptr<Request>& request);
  void abandon(const std::string& reason);
  void await(Request& request, std::chrono::milliseconds limit);
  void adopt(Request& request) noexcept;

  const std::int64_t block_bytes_;
  const bool single_submit_;
  const bool overlap_events_;
  Logger& logger_;
  const IoPath path_;
  const std::string why_not_uring_;
  std::vector<Slot> slots_;  // above the queue: their memory lives until the kernel lets go of it
  const std::unique_ptr<RawQueue> queue_;

  std::mutex mutex_;  // guards slots_, everything below, and the requests' fields
  std::condition_variable work_changed_;
  std::condition_variable request_done_;
  std::deque<std::shared_ptr<Request>> waiting_;  // with pieces that were not handed out yet
  std::deque<Slot> retries_;                      // pieces to hand out before those
  std::vector<std::uint64_t> free_slots_;
  std::vector<RawOp> batch_;  // scratch of fill_queue()
  std::int64_t requests_in_flight_ = 0;
  std::int64_t pieces_in_flight_ = 0;
  bool device_busy_ = false;  // pause before the next try
  bool closing_ = false;
  std::string broken_;                // not empty: why the queue is lost
  std::vector<std::string> dropped_;  // what close() reports
  std::thread collector_;
};

}  // namespace capstan::io
