#include "capstan/store/swap_stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace capstan::store {
namespace {

// A disk that has not answered by then has failed.
constexpr std::chrono::minutes kPatience{10};

// Each span begins at a page, as direct I/O wants it.
std::int64_t buffer_bytes(const SwapTile& tile) {
  std::int64_t bytes = 0;
  for (const auto& span : tile) {
    bytes += io::round_up_to_align(static_cast<std::int64_t>(span.size()));
  }
  return bytes;
}

}  // namespace

SwapStream::SwapStream(const SwapFiles& files, io::Ring& ring, int buffer_count)
    : files_(files), ring_(ring), buffers_(static_cast<std::size_t>(std::max(3, buffer_count))) {}

void SwapStream::Buffer::wait() {
  for (io::PendingIo& transfer : std::exchange(transfers, {})) transfer.wait_at_most(kPatience);
}

void SwapStream::start(std::vector<SwapTile> tiles) {
  finish();
  tiles_ = std::move(tiles);
  used_ = read_ = written_ = 0;
  std::int64_t largest = 0;
  for (const SwapTile& tile : tiles_) largest = std::max(largest, buffer_bytes(tile));
  for (Buffer& buffer : buffers_) {
    if (buffer.memory != nullptr && buffer.memory->size_bytes() >= largest) continue;
    buffer.memory = std::make_shared<io::AlignedBuffer>(largest);
  }
  read_ahead();
}

// One buffer is used, and one is still being written.
void SwapStream::read_ahead() {
  const std::size_t ahead = std::min(tiles_.size(), used_ + buffers_.size() - 1);
  for (; read_ < ahead; ++read_) read(read_);
}

void SwapStream::read(std::size_t tile) {
  Buffer& buffer = buffer_of(tile);
  buffer.wait();
  std::byte* at = buffer.memory->bytes().data();
  for (const auto& span : tiles_[tile]) {
    const SwapFiles::Place place = files_.place_of(span.data());
    buffer.transfers.push_back(
        ring_.read(*place.file, place.offset, {at, span.size()}, buffer.memory));
    at += io::round_up_to_align(static_cast<std::int64_t>(span.size()));
  }
}

void SwapStream::write(std::size_t tile) {
  Buffer& buffer = buffer_of(tile);
  const std::byte* at = buffer.memory->bytes().data();
  for (const auto& span : tiles_[tile]) {
    const SwapFiles::Place place = files_.place_of(span.data());
    buffer.transfers.push_back(
        ring_.write(*place.file, place.offset, {at, span.size()}, buffer.memory));
    at += io::round_up_to_align(static_cast<std::int64_t>(span.size()));
  }
}

std::vector<std::byte*> SwapStream::next() {
  for (; written_ < used_; ++written_) write(written_);
  read_ahead();
  Buffer& buffer = buffer_of(used_);
  buffer.wait();
  std::vector<std::byte*> columns;
  std::byte* at = buffer.memory->bytes().data();
  for (const auto& span : tiles_[used_]) {
    columns.push_back(at);
    at += io::round_up_to_align(static_cast<std::int64_t>(span.size()));
  }
  ++used_;
  return columns;
}

void SwapStream::finish() {
  for (; written_ < used_; ++written_) write(written_);
  for (Buffer& buffer : buffers_) buffer.wait();
  tiles_.clear();
  used_ = read_ = written_ = 0;
}

}  // namespace capstan::store
