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
#include "capstan/checkpoint/past_cache.h"

namespace capstan::checkpoint {
namespace {

constexpr std::chrono::milliseconds kPollPause{20};

// Copies of host memory at a time. Chosen: a core or two do not fill the memory's bandwidth, and
// more than four seldom add to it.
int copy_threads() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 4U));
}

constexpr std::int64_t kBytesPerCopier = std::int64_t{32} << 20;  // less is not worth a thread

// Small enough to be copied aside one at a time; those of a device last, where copying begins.
std::deque<Piece> cut_into_blocks(const std::vector<Piece>& pieces, std::int64_t block_bytes) {
  std::deque<Piece> blocks;
  for (const bool on_device : {false, true}) {
    for (const Piece& piece : pieces) {
      if (piece.on_device != on_device) continue;
      for (std::int64_t begin = piece.begin; begin < piece.end; begin += block_bytes) {
        Piece block = piece;
        block.begin = begin;
        block.end = std::min(begin + block_bytes, piece.end);
        if (piece.host != nullptr) block.host = piece.host + (begin - piece.begin);
        blocks.push_back(std::move(block));
      }
    }
  }
  return blocks;
}

std::int64_t size_of(const Piece& piece) { return piece.end - piece.begin; }

std::int64_t block_bytes(std::int64_t copy_bytes) {
  return std::clamp(copy_bytes / 4, std::int64_t{4096}, kWriteBytes) / 4096 * 4096;
}

// What counts against the limit on copies.
std::int64_t limited_bytes(const Piece& piece) { return piece.on_device ? 0 : size_of(piece); }

// The piece over a copy of its bytes.
Piece copy_of(const Piece& piece, const TakeMemory& take_memory) {
  std::shared_ptr<void> memory = take_memory(size_of(piece));
  auto* const bytes = static_cast<std::byte*>(memory.get());
  const auto size = static_cast<std::size_t>(size_of(piece));
  if (piece.host != nullptr) {
    copy_past_cache({piece.host, size}, bytes);
  } else {
    piece.fill(piece.begin, {bytes, size});
  }
  Piece copy = piece;
  copy.fill = [memory = std::move(memory), bytes, first = piece.begin](std::int64_t begin,
                                                                       std::span<std::byte> into) {
    std::memcpy(into.data(), bytes + (begin - first), into.size());
  };
  return copy;
}

IoError given_up() { return IoError({.what = "the run ended during a background save"}); }

}  // namespace

std::shared_ptr<void> plain_memory(std::int64_t bytes) {
  return std::make_shared_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
}

std::vector<std::int64_t> device_copy_sizes(const std::vector<Piece>& pieces,
                                            std::int64_t copy_bytes) {
  std::vector<std::int64_t> sizes;
  for (const Piece& block : cut_into_blocks(pieces, block_bytes(copy_bytes))) {
    if (block.on_device) sizes.push_back(size_of(block));
  }
  return sizes;
}

BackgroundSave::BackgroundSave(BackgroundJob job) : job_(std::move(job)) {
  live_ = cut_into_blocks(std::exchange(job_.pieces, {}), block_bytes(job_.copy_bytes));
  if (!live_.empty() && live_.back().on_device) {
    copier_ = std::thread([this] { copy_from_device(); });
  }
  writer_ = std::thread([this] { run(); });
}

BackgroundSave::~BackgroundSave() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    live_.clear();
  }
  changed_.notify_all();
  if (copier_.joinable()) copier_.join();
  writer_.join();
}

bool BackgroundSave::take_piece(Piece& piece) {
  const std::lock_guard lock(mutex_);
  if (stopping_) throw given_up();
  if (failure_) std::rethrow_exception(failure_);
  // While memory can be copied all cores do that: it is free sooner than by being written.
  if (releasing_ && has_room()) return false;
  // Those of a device are written from their copies: what memory these take, and how long training
  // waits for it, is then the same in every save but the first.
  std::deque<Piece>& from = live_.empty() || live_.front().on_device ? copied_ : live_;
  if (from.empty()) return false;
  in_hand_ = &from == &live_;
  piece = std::move(from.front());
  from.pop_front();
  return true;
}

void BackgroundSave::piece_written(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  if (!in_hand_) aside_bytes_ -= limited_bytes(piece);
  in_hand_ = false;
  changed_.notify_all();
}

void BackgroundSave::write_pieces(Disk& disk) {
  PieceWriter writer(job_.plan, job_.partial, job_.buffers, disk);
  Piece piece;
  while (true) {
    if (!take_piece(piece)) {
      std::unique_lock lock(mutex_);
      if (live_.empty() && copied_.empty() && copying_ == 0) break;
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
    if (stopping_) throw given_up();
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
    fail(std::current_exception());
  }
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

// The first failure is the one that is told.
void BackgroundSave::fail(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
  live_.clear();
  copied_.clear();
  in_hand_ = false;
  changed_.notify_all();
}

void BackgroundSave::copy_aside(std::unique_lock<std::mutex>& lock) {
  const Piece piece = std::move(live_.back());
  live_.pop_back();
  ++copying_;
  aside_bytes_ += limited_bytes(piece);
  lock.unlock();
  std::optional<Piece> copy;
  try {
    copy = copy_of(piece, job_.take_memory);
  } catch (const std::exception&) {
    fail(std::current_exception());
  }
  lock.lock();
  --copying_;
  if (copy && !failure_) {
    stats_.copied_bytes += size_of(piece);
    copied_.push_back(std::move(*copy));
  }
  if (!releasing_ || !has_room()) changed_.notify_all();
}

void BackgroundSave::copy_from_device() noexcept {
  std::unique_lock lock(mutex_);
  while (!live_.empty() && live_.back().on_device) copy_aside(lock);
}

bool BackgroundSave::has_room() const {
  return !live_.empty() && aside_bytes_ + limited_bytes(live_.back()) <= job_.copy_bytes;
}

// Until nothing is live, on several threads at once.
void BackgroundSave::copy_live() {
  std::unique_lock lock(mutex_);
  while (!live_.empty() || in_hand_ || copying_ > 0) {
    if (has_room()) {
      copy_aside(lock);
    } else {
      changed_.wait(lock);
    }
  }
}

void BackgroundSave::release_memory() {
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t live_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    releasing_ = true;
    for (const Piece& piece : live_) live_bytes += size_of(piece);
  }
  {
    std::vector<std::jthread> copiers;
    for (int i = 1; i < copy_threads() && live_bytes > i * kBytesPerCopier; ++i) {
      copiers.emplace_back([this] { copy_live(); });
    }
    copy_live();
  }
  const std::lock_guard lock(mutex_);
  releasing_ = false;
  stats_.blocked += std::chrono::steady_clock::now() - begin;
}

bool BackgroundSave::ended(std::chrono::milliseconds wait) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, wait, [this] { return done_; });
}

void BackgroundSave::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
  if (failure_) std::rethrow_exception(failure_);
}

BackgroundSave::Stats BackgroundSave::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace capstan::checkpoint
