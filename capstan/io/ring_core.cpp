#include "capstan/io/ring_core.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/io/aligned_buffer.h"
#include "capstan/io/failure.h"

namespace capstan::io {
namespace {

// Chosen: a device that makes no progress in this many tries in a row is broken, not busy.
constexpr int kMaxAttempts = 1000;
// Chosen: the first few tries follow at once (signals), later ones give the kernel time.
constexpr int kQuickAttempts = 8;
constexpr std::chrono::milliseconds kBusyPause{1};
// Required: one transfer's length is 31 bits wide in the kernel.
constexpr std::int64_t kMaxBlockBytes = std::int64_t{1} << 30;

std::int64_t usable_block_bytes(const Options& options) {
  return round_up_to_align(std::clamp<std::int64_t>(options.block_bytes, 1, kMaxBlockBytes));
}

std::string_view verb(OpKind kind) { return kind == OpKind::read ? "read" : "write"; }

FailedCall failed_call(const Request& request, const Piece& piece) {
  return {.verb = verb(request.kind),
          .file = request.file->path(),
          .offset = request.offset + piece.begin,
          .bytes = piece.bytes};
}

void keep_first_failure(Request& request, const Piece& piece, IoError failure) {
  const std::int64_t offset = request.offset + piece.begin;
  request.handed_out = request.bytes;
  if (request.failure && request.failed_offset <= offset) return;
  request.failed_offset = offset;
  request.failure.emplace(std::move(failure));
}

IoError queue_lost(const std::string& reason, const std::filesystem::path& file) {
  return IoError({.what = "the I/O queue is lost: " + reason,
                  .where = file.string(),
                  .fix = "look at the disk (dmesg, iostat -x 1) and start the program again; if it "
                         "is not the disk, build with CAPSTAN_URING=OFF"});
}

// Interrupted, out of kernel memory, or cancelled because the thread that submitted it has ended.
bool worth_another_try(int error_number) {
  return error_number == EINTR || error_number == EAGAIN || error_number == ECANCELED;
}

}  // namespace

RingCore::RingCore(const Options& options, std::unique_ptr<RawQueue> queue)
    : block_bytes_(usable_block_bytes(options)),
      single_submit_(options.single_submit),
      overlap_events_(options.overlap_events),
      queue_(std::move(queue)) {
  slots_.resize(static_cast<std::size_t>(queue_->depth()));
  for (std::uint64_t tag = 0; tag < slots_.size(); ++tag) free_slots_.push_back(tag);
  batch_.reserve(slots_.size());
}

void RingCore::start(const std::shared_ptr<Request>& request) {
  if (request->offset < 0) {
    throw InternalError(
        {.what = fmt::format("{} at offset {}", verb(request->kind), request->offset),
         .where = request->file->path().string()});
  }
  const std::lock_guard lock(mutex_);
  if (closing_) {
    throw InternalError({.what = fmt::format("{} on a closed ring", verb(request->kind)),
                         .where = request->file->path().string()});
  }
  if (!broken_.empty()) throw queue_lost(broken_, request->file->path());
  if (request->bytes == 0) {
    request->done = true;
    return;
  }
  ++requests_in_flight_;
  waiting_.push_back(request);
  fill_queue();
  work_changed_.notify_one();
}

bool RingCore::close(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  closing_ = true;
  work_changed_.notify_all();
  while (requests_in_flight_ > 0) {
    const std::int64_t before = pieces_ended_;
    const bool moves = request_done_.wait_for(
        lock, patience, [&] { return requests_in_flight_ == 0 || pieces_ended_ != before; });
    if (moves) continue;
    notes_.push_back(fmt::format(
        "the disk has not answered for {} ms: {} transfers are given up, and their memory is kept "
        "until it does",
        patience.count(), requests_in_flight_));
    abandon(fmt::format("the disk has not answered for {} ms", patience.count()));
    return false;
  }
  return true;
}

std::vector<std::string> RingCore::take_notes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(notes_, {});
}

void RingCore::collect() {
  std::vector<RawDone> done(slots_.size());
  std::unique_lock lock(mutex_);
  for (;;) {
    work_changed_.wait(
        lock, [this] { return pieces_in_flight_ > 0 || (closing_ && requests_in_flight_ == 0); });
    if (pieces_in_flight_ == 0) return;
    lock.unlock();
    std::int64_t count = 0;
    std::string broken;
    try {
      count = queue_->wait(done);
    } catch (const Error& error) {
      broken = error.what();
    }
    lock.lock();
    if (!broken.empty()) {
      abandon(broken);
      pieces_in_flight_ = 0;  // nobody will hear of them
      continue;
    }
    for (std::int64_t i = 0; i < count; ++i) finish_piece(done[static_cast<std::size_t>(i)]);
    if (std::exchange(device_busy_, false)) {
      lock.unlock();
      std::this_thread::sleep_for(kBusyPause);
      lock.lock();
    }
    fill_queue();
  }
}

void RingCore::fill_queue() {
  // Without overlap a batch goes out only when the one before has come back whole.
  if (!overlap_events_ && pieces_in_flight_ > 0) return;
  do {
    batch_.clear();
    Slot slot;
    while (!free_slots_.empty() && next_slot(slot)) {
      const std::uint64_t tag = free_slots_.back();
      free_slots_.pop_back();
      batch_.push_back(raw_op(slot, tag));
      slots_[tag] = std::move(slot);
    }
    pieces_in_flight_ += std::ssize(batch_);
    if (single_submit_) {
      for (const RawOp& op : batch_) submit({&op, 1});
    } else {
      submit(batch_);
    }
    // Where the queue took nothing, those pieces have failed and the next ones get their turn:
    // nobody else would wake up for them.
  } while (pieces_in_flight_ == 0 && !batch_.empty());
}

void RingCore::submit(std::span<const RawOp> batch) {
  if (batch.empty()) return;
  const Submitted result = queue_->submit(batch);
  for (const RawOp& op : batch.subspan(static_cast<std::size_t>(result.accepted))) {
    Slot& slot = slots_[op.tag];
    keep_first_failure(*slot.request, slot.piece,
                       io_failure(failed_call(*slot.request, slot.piece), result.error));
    const std::shared_ptr<Request> request = std::exchange(slot.request, nullptr);
    free_slots_.push_back(op.tag);
    --pieces_in_flight_;
    --request->pieces_open;
    finish_if_done(request);
  }
}

bool RingCore::next_slot(Slot& slot) {
  if (!retries_.empty()) {
    slot = std::move(retries_.front());
    retries_.pop_front();
    return true;
  }
  while (!waiting_.empty()) {
    const std::shared_ptr<Request>& request = waiting_.front();
    if (request->handed_out < request->bytes) {
      const Transfer transfer{.offset = request->offset,
                              .memory = reinterpret_cast<std::uintptr_t>(request->data),
                              .bytes = request->bytes};
      const Piece piece =
          piece_at(transfer, request->handed_out, block_bytes_, request->file->direct());
      request->handed_out += piece.bytes;
      ++request->pieces_open;
      slot = {.request = request, .piece = piece};
      return true;
    }
    waiting_.pop_front();
  }
  return false;
}

RawOp RingCore::raw_op(const Slot& slot, std::uint64_t tag) const {
  const Request& request = *slot.request;
  return {.kind = request.kind,
          .fd = slot.piece.direct ? request.file->direct_fd() : request.file->fd(),
          .data = request.data + slot.piece.begin,
          .bytes = slot.piece.bytes,
          .offset = request.offset + slot.piece.begin,
          .tag = tag};
}

void RingCore::finish_piece(const RawDone& done) {
  Slot slot = std::exchange(slots_[done.tag], Slot{});
  --pieces_in_flight_;
  ++pieces_ended_;
  if (closing_) request_done_.notify_all();
  if (!broken_.empty()) return;  // its request has failed already
  free_slots_.push_back(done.tag);
  const std::shared_ptr<Request> request = slot.request;
  if (done.result < 0) {
    retry_or_fail(std::move(slot), static_cast<int>(-done.result));
  } else if (done.result == slot.piece.bytes) {
    --request->pieces_open;
  } else if (done.result == 0 && request->kind == OpKind::read) {
    keep_first_failure(*request, slot.piece, unexpected_end(failed_call(*request, slot.piece)));
    --request->pieces_open;
  } else if (done.result == 0) {
    retry_or_fail(std::move(slot), EAGAIN);
  } else {
    // A short transfer is normal. What is left may no longer start on a block of the disk.
    slot.piece.begin += done.result;
    slot.piece.bytes -= done.result;
    slot.piece.direct = slot.piece.direct && done.result % kDirectIoAlignBytes == 0;
    slot.attempts = 0;
    retries_.push_back(std::move(slot));
  }
  finish_if_done(request);
}

void RingCore::retry_or_fail(Slot slot, int error_number) {
  Request& request = *slot.request;
  if (error_number == EINVAL && slot.piece.direct) {
    request.file->refuse_direct();
    slot.piece.direct = false;
    retries_.push_back(std::move(slot));
    return;
  }
  if (worth_another_try(error_number) && ++slot.attempts < kMaxAttempts) {
    device_busy_ = device_busy_ || slot.attempts > kQuickAttempts;
    retries_.push_back(std::move(slot));
    return;
  }
  keep_first_failure(request, slot.piece,
                     io_failure(failed_call(request, slot.piece), error_number));
  --request.pieces_open;
}

void RingCore::finish_if_done(const std::shared_ptr<Request>& request) {
  if (request->done || request->pieces_open > 0 || request->handed_out < request->bytes) return;
  request->done = true;
  --requests_in_flight_;
  if (const std::optional<IoError>& failure = request->failure; failure && request->dropped) {
    notes_.push_back(fmt::format("a dropped {} failed: {}", verb(request->kind), failure->what()));
  }
  request_done_.notify_all();
}

// All requests fail. The slots keep theirs, and with them the memory, until the queue has given
// them back or is itself gone.
void RingCore::abandon(const std::string& reason) {
  broken_ = reason;
  const auto fail = [&](const std::shared_ptr<Request>& request) {
    if (request == nullptr || request->done) return;
    keep_first_failure(*request, {}, queue_lost(reason, request->file->path()));
    request->pieces_open = 0;
    finish_if_done(request);
  };
  for (const Slot& slot : slots_) fail(slot.request);
  for (const Slot& slot : retries_) fail(slot.request);
  for (const std::shared_ptr<Request>& request : waiting_) fail(request);
  retries_.clear();
  waiting_.clear();
  free_slots_.clear();
}

void RingCore::await(Request& request, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  const auto finished = [&] { return request.done.load(); };
  if (limit == std::chrono::milliseconds::max()) {
    request_done_.wait(lock, finished);
  } else if (!request_done_.wait_for(lock, limit, finished)) {
    throw IoError(
        {.what = fmt::format("the disk has not finished a {} of {} bytes in {} ms",
                             verb(request.kind), request.bytes, limit.count()),
         .where = fmt::format("{}, offset {}", request.file->path().string(), request.offset),
         .fix = "the disk is overloaded or failing (iostat -x 1, dmesg); use another, or "
                "allow more time"});
  }
}

void RingCore::adopt(Request& request) noexcept {
  const std::lock_guard lock(mutex_);
  if (request.done) return;
  request.dropped = true;
  try {
    notes_.push_back(fmt::format(
        "a {} of {} bytes at offset {} of {} was dropped before it was done; wait() for it",
        verb(request.kind), request.bytes, request.offset, request.file->path().string()));
  } catch (const std::exception&) {
    // Out of memory for a message about a message; the transfer itself is drained all the same.
    return;
  }
}

}  // namespace capstan::io
