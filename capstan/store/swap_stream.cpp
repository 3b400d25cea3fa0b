#include "capstan/store/swap_stream.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

namespace capstan::store {
namespace {

// A disk that has not answered by then has failed.
constexpr std::chrono::minutes kPatience{10};

// Each span begins at a page, as direct I/O wants it.
std::int64_t room_of(std::span<const std::byte> span) {
  return io::round_up_to_align(static_cast<std::int64_t>(span.size()));
}

std::int64_t room_of(const Spans& tile) {
  std::int64_t bytes = 0;
  for (const auto& span : tile) bytes += room_of(span);
  return bytes;
}

}  // namespace

SwapStream::SwapStream(const SwapFiles& files, io::Ring& ring, int buffer_count,
                       profile::Recorder* recorder)
    : files_(files), ring_(ring), buffer_count_(std::max(3, buffer_count)), recorder_(recorder) {}

bool SwapStream::Held::done() const {
  return std::all_of(transfers.begin(), transfers.end(),
                     [](const io::PendingIo& transfer) { return transfer.done(); });
}

void SwapStream::Held::wait(profile::Recorder* recorder) {
  const profile::Span waiting(recorder, {.name = "disk", .kind = profile::Kind::wait});
  for (io::PendingIo& transfer : std::exchange(transfers, {})) transfer.wait_at_most(kPatience);
  span.end();
}

void SwapStream::start(std::vector<Spans> tiles) {
  finish();
  tiles_ = std::move(tiles);
  std::int64_t largest = 0;
  for (const Spans& tile : tiles_) largest = std::max(largest, room_of(tile));
  if (memory_ == nullptr || memory_->size_bytes() < buffer_count_ * largest) {
    memory_ = std::make_shared<io::AlignedBuffer>(buffer_count_ * largest, io::Pages::huge);
  }
  read_ahead();
}

// Tiles follow each other in the memory, and begin again at its front.
std::optional<std::int64_t> SwapStream::room_for(std::int64_t bytes) const {
  if (held_.empty()) return 0;
  const std::int64_t first = held_.front().begin;
  const std::int64_t end = held_.back().begin + held_.back().bytes;
  const bool around = held_.back().begin < first;
  if (end + bytes <= (around ? first : memory_->size_bytes())) return end;
  if (!around && bytes <= first) return 0;
  return std::nullopt;
}

bool SwapStream::read_one() {
  const Spans& tile = tiles_[read_];
  const std::optional<std::int64_t> room = room_for(room_of(tile));
  if (!room.has_value()) return false;
  Held& held = held_.emplace_back(Held{
      .begin = *room,
      .bytes = room_of(tile),
      .transfers = {},
      .span = {recorder_, {.name = "read", .kind = profile::Kind::io, .bytes = room_of(tile)}}});
  ++read_;
  std::byte* at = memory_->bytes().data() + held.begin;
  for (const auto& span : tile) {
    const SwapFiles::Place place = files_.place_of(span.data());
    held.transfers.push_back(ring_.read(*place.file, place.offset, {at, span.size()}, memory_));
    at += room_of(span);
  }
  return true;
}

// Without a wait: into memory that was never used, or whose write has ended.
void SwapStream::read_ahead() {
  while (read_ < tiles_.size()) {
    if (read_one()) continue;
    if (read_ - held_.size() == written_ || !held_.front().done()) return;
    held_.front().wait(recorder_);
    held_.pop_front();
  }
}

void SwapStream::read_up_to(std::size_t tile) {
  while (read_ < std::min(tile, tiles_.size())) {
    if (read_one()) continue;
    held_.front().wait(recorder_);
    held_.pop_front();
  }
}

void SwapStream::write_used() {
  for (; written_ < used_; ++written_) {
    Held& held = this->held(written_);
    held.span = {recorder_, {.name = "write", .kind = profile::Kind::io, .bytes = held.bytes}};
    const std::byte* at = memory_->bytes().data() + held.begin;
    for (const auto& span : tiles_[written_]) {
      const SwapFiles::Place place = files_.place_of(span.data());
      held.transfers.push_back(ring_.write(*place.file, place.offset, {at, span.size()}, memory_));
      at += room_of(span);
    }
  }
}

bool SwapStream::next_is(const Spans& tile) const {
  return used_ < tiles_.size() && std::ranges::equal(
                                      tiles_[used_], tile,
                                      [](const auto& its, const auto& given) {
                                        return its.data() == given.data() &&
                                               its.size() == given.size();
                                      });
}

// While a tile is used the disk has work: the one after it is on its way.
std::vector<std::byte*> SwapStream::next() {
  write_used();
  read_ahead();
  read_up_to(used_ + 1);
  held(used_).wait(recorder_);
  read_ahead();
  read_up_to(used_ + 2);
  std::vector<std::byte*> columns;
  columns.reserve(tiles_[used_].size());
  std::byte* at = memory_->bytes().data() + held(used_).begin;
  for (const auto& span : tiles_[used_]) {
    columns.push_back(at);
    at += room_of(span);
  }
  ++used_;
  return columns;
}

void SwapStream::finish() {
  write_used();
  for (Held& held : held_) held.wait(recorder_);
  held_.clear();
  tiles_.clear();
  read_ = used_ = written_ = 0;
}

}  // namespace capstan::store
