// Saves while training goes on: pieces of host memory are written from where they are, and copied
// aside only where the next update would overwrite them first; those of a device are copied at
// once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "capstan/checkpoint/piece_writer.h"
#include "capstan/checkpoint/save.h"

namespace capstan::checkpoint {

// Memory for a copy of so many bytes.
using TakeMemory = std::function<std::shared_ptr<void>(std::int64_t bytes)>;
std::shared_ptr<void> plain_memory(std::int64_t bytes);

// What a save will take for the pieces of a device, all of it at a time.
std::vector<std::int64_t> device_copy_sizes(const std::vector<Piece>& pieces,
                                            std::int64_t copy_bytes);

struct BackgroundJob {
  SaveRequest request;
  FilePlan plan;
  std::filesystem::path partial;  // partial_path() of the rank that commits
  std::vector<Piece> pieces;      // of this rank
  int rank = 0;
  int ranks = 1;
  BufferOptions buffers;
  // How much host memory may be copied aside at a time; copies of a device's come on top.
  std::int64_t copy_bytes = 0;
  TakeMemory take_memory = plain_memory;  // called by several threads
  std::chrono::seconds timeout{0};        // how long ranks wait for each other
};

// Rank 0 makes the unfinished folder and commits; the ranks meet through notes in that folder, so
// that no collective is ever issued from here.
// Owns:    its threads and what was copied aside.
// Threads: one caller beside its own.
class BackgroundSave {
 public:
  // Pieces' memory stays unchanged until release_memory() has returned.
  explicit BackgroundSave(BackgroundJob job);
  // Gives up what is not written yet; see wait().
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Returns when no piece needs live memory any more: what is not written yet is copied aside, and
  // where copy_bytes are used up the disk is waited for.
  void release_memory();

  // Returns whether this rank has nothing left to do or has failed; waits for that, so long.
  bool ended(std::chrono::milliseconds wait = {}) const;
  // Waits for that and throws what went wrong.
  void wait();

  struct Stats {
    std::int64_t copied_bytes = 0;
    std::chrono::nanoseconds blocked{0};  // in release_memory()
  };
  Stats stats() const;
  // On rank 0 after success.
  const std::optional<Committed>& committed() const { return committed_; }

 private:
  void run() noexcept;
  void copy_from_device() noexcept;
  void write_pieces(Disk& disk);
  bool take_piece(Piece& piece);
  void piece_written(const Piece& piece);
  bool has_room() const;
  void copy_aside(std::unique_lock<std::mutex>& lock);
  void copy_live();
  void fail(std::exception_ptr failure);
  template <typename Ready>
  void await_peers(const char* what, Ready&& ready);

  BackgroundJob job_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Piece> live_;        // not begun; written from the front, copied from the back
  std::deque<Piece> copied_;      // aside
  bool in_hand_ = false;          // a live piece is being written
  int copying_ = 0;               // pieces on their way aside
  bool releasing_ = false;        // the caller waits for live memory: leave it to be copied
  std::int64_t aside_bytes_ = 0;  // of host memory
  Stats stats_;
  bool stopping_ = false;
  bool done_ = false;
  std::exception_ptr failure_;
  std::optional<Committed> committed_;
  std::thread copier_;  // last, like the next: they use everything above
  std::thread writer_;
};

}  // namespace capstan::checkpoint
