// The inside of a Ring: shared by the ring, its handles and the thread that collects completions,
// so that a disk which never answers holds nobody else. Private to io/.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "capstan/io/open_queue.h"
#include "capstan/io/options.h"
#include "capstan/io/request.h"
#include "capstan/io/split.h"

namespace capstan::io {

// Owns:    the raw queue and every request in flight, with its file and memory.
// Threads: any number of callers, and one in collect().
class RingCore {
 public:
  RingCore(const Options& options, std::unique_ptr<RawQueue> queue);
  RingCore(const RingCore&) = delete;
  RingCore& operator=(const RingCore&) = delete;

  void start(const std::shared_ptr<Request>& request);
  // The body of the thread: returns when the ring is closed and nothing is in flight.
  void collect();

  // Nothing can be started afterwards. Waits while transfers end; when none has for `patience`,
  // those that are left fail, and their memory stays with this until the disk gives it back.
  // Returns whether all ended.
  bool close(std::chrono::milliseconds patience);
  // What the owner of the ring should hear: of handles that were dropped, and of their failures.
  std::vector<std::string> take_notes();

  void await(Request& request, std::chrono::milliseconds limit);
  void adopt(Request& request) noexcept;

 private:
  struct Slot {  // one piece in the raw queue, by tag
    std::shared_ptr<Request> request;
    Piece piece;
    int attempts = 0;  // in a row without progress
  };

  void fill_queue();  // the rest: with mutex_ held
  void submit(std::span<const RawOp> batch);
  bool next_slot(Slot& slot);
  RawOp raw_op(const Slot& slot, std::uint64_t tag) const;
  void finish_piece(const RawDone& done);
  void retry_or_fail(Slot slot, int error_number);
  void finish_if_done(const std::shared_ptr<Request>& request);
  void abandon(const std::string& reason);

  const std::int64_t block_bytes_;
  const bool single_submit_;
  const bool overlap_events_;
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
  std::int64_t pieces_ended_ = 0;
  bool device_busy_ = false;  // pause before the next try
  bool closing_ = false;
  std::string broken_;              // not empty: why the queue is lost
  std::vector<std::string> notes_;  // see take_notes()
};

}  // namespace capstan::io
