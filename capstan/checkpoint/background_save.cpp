#include "capstan/checkpoint/background_save.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/index.h"
#include "capstan/checkpoint/part.h"

namespace capstan::checkpoint {
namespace {

constexpr std::chrono::milliseconds kPollPause{20};

// Small enough to be copied aside one at a time.
std::deque<Piece> cut_into_blocks(const std::vector<Piece>& pieces, std::int64_t block_bytes) {
  std::deque<Piece> blocks;
  for (const Piece& piece : pieces) {
    for (std::int64_t begin = piece.begin; begin < piece.end; begin += block_bytes) {
      Piece block = piece;
      block.begin = begin;
      block.end = std::min(begin + block_bytes, piece.end);
      blocks.push_back(std::move(block));
    }
  }
  return blocks;
}

std::int64_t size_of(const Piece& piece) { return piece.end - piece.begin; }

// The piece over a copy of its bytes.
Piece copy_of(const Piece& piece) {
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(size_of(piece)));
  piece.fill(piece.begin, *bytes);
  Piece copy = piece;
  copy.fill = [bytes = std::move(bytes), first = piece.begin](std::int64_t begin,
                                                              std::span<std::byte> into) {
    std::memcpy(into.data(), bytes->data() + (begin - first), into.size());
  };
  return copy;
}

}  // namespace

BackgroundSave::BackgroundSave(BackgroundJob job) : job_(std::move(job)) {
  const std::int64_t block = std::clamp(job_.copy_bytes / 4, std::int64_t{4096}, kBlockBytes);
  live_ = cut_into_blocks(job_.pieces, block / 4096 * 4096);
  job_.pieces.clear();
  thread_ = std::thread([this] { run(); });
}

BackgroundSave::~BackgroundSave() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    live_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

bool BackgroundSave::take_piece(Piece& piece) {
  const std::lock_guard lock(mutex_);
  if (stopping_) throw IoError({.what = "the run ended while it saved in the background"});
  std::deque<Piece>& from = live_.empty() ? copied_ : live_;
  if (from.empty()) return false;
  in_hand_ = &from == &live_;
  piece = std::move(from.front());
  from.pop_front();
  return true;
}

void BackgroundSave::piece_written(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  if (!in_hand_) aside_bytes_ -= size_of(piece);
  in_hand_ = false;
  changed_.notify_all();
}

void BackgroundSave::write_pieces(Disk& disk) {
  PieceWriter writer(job_.plan, job_.partial, job_.buffers, disk);
  Piece piece;
  while (true) {
    if (!take_piece(piece)) {
      // The last live piece may be on its way aside.
      std::unique_lock lock(mutex_);
      if (live_.empty() && copied_.empty() && aside_bytes_ == 0) break;
      changed_.wait_for(lock, kPollPause);
      continue;
    }
    writer.write(piece);
    piece_written(piece);
    piece.fill = nullptr;  // its memory goes now, not with the next piece
  }
  write_part(job_.partial, job_.rank, writer.finish(), disk);
}

template <typename Ready>
void BackgroundSave::await_peers(const char* what, Ready&& ready) {
  const auto deadline = std::chrono::steady_clock::now() + job_.timeout;
  while (!ready()) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPollPause);
    if (stopping_) throw IoError({.what = "the run ended while it saved in the background"});
    if (std::chrono::steady_clock::now() > deadline) {
      throw IoError({.what = fmt::format("waited {} s for {}", job_.timeout.count(), what),
                     .where = job_.partial.string(),
                     .fix = "see the other ranks' errors; all ranks must share the folder"});
    }
  }
}

void BackgroundSave::run() noexcept {
  io::DurableCalls calls;
  Disk disk = system_disk(calls);
  try {
    if (job_.rank == 0) begin_save(job_.request, job_.plan, disk);
    await_peers("the unfinished folder", [&] { return save_has_begun(job_.partial); });
    write_pieces(disk);
    if (job_.rank == 0) {
      await_peers("the other ranks' parts", [&] {
        for (int rank = 0; rank < job_.ranks; ++rank) {
          if (!std::filesystem::exists(part_path(job_.partial, rank))) return false;
        }
        return true;
      });
      committed_ = commit_save(job_.partial, job_.request, job_.plan, job_.ranks, disk);
    }
  } catch (const std::exception& error) {
    std::error_code missing;
    if (job_.rank == 0) {
      abandon_save(job_.partial);
    } else if (std::filesystem::exists(job_.partial, missing)) {
      try {
        write_part(job_.partial, job_.rank, {.blocks = {}, .error = error.what()}, disk);
        // The first failure is the one to tell; without a note rank 0 gives up by its timeout.
        // NOLINTNEXTLINE(bugprone-empty-catch)
      } catch (const std::exception&) {
      }
    }
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    live_.clear();
    copied_.clear();
    in_hand_ = false;
  }
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

void BackgroundSave::copy_aside(std::unique_lock<std::mutex>& lock) {
  const Piece piece = std::move(live_.back());
  live_.pop_back();
  aside_bytes_ += size_of(piece);
  lock.unlock();
  Piece copy = copy_of(piece);
  lock.lock();
  stats_.copied_bytes += size_of(piece);
  copied_.push_back(std::move(copy));
  changed_.notify_all();
}

void BackgroundSave::release_memory() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!done_ && (!live_.empty() || in_hand_)) {
    const bool room = !live_.empty() && aside_bytes_ + size_of(live_.back()) <= job_.copy_bytes;
    if (room) {
      copy_aside(lock);
    } else {
      changed_.wait(lock);
    }
  }
  stats_.blocked += std::chrono::steady_clock::now() - begin;
}

bool BackgroundSave::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void BackgroundSave::rethrow() {
  const std::lock_guard lock(mutex_);
  if (done_ && failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void BackgroundSave::wait() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  rethrow();
}

BackgroundSave::Stats BackgroundSave::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace capstan::checkpoint
