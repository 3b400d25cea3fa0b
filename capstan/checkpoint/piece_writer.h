// Writes this rank's pieces of tensors into the shared files of an unfinished checkpoint, each at
// its exact place, through a bounded buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "capstan/base/log.h"
#include "capstan/checkpoint/disk.h"
#include "capstan/checkpoint/file_plan.h"
#include "capstan/checkpoint/part.h"
#include "capstan/io/aligned_buffer.h"
#include "capstan/io/file.h"
#include "capstan/io/ring.h"

namespace capstan::checkpoint {

// Copies the tensor's bytes from `begin` on into host memory.
using Fill = std::function<void(std::int64_t begin, std::span<std::byte> into)>;

// A range of one tensor that this rank writes.
struct Piece {
  std::string column;
  std::string tensor;
  std::int64_t begin = 0;  // bytes of the tensor
  std::int64_t end = 0;
  Fill fill;
  bool on_device = false;  // its memory is not the host's
  // Its bytes from `begin` on, where they lie in host memory just so; `fill` keeps them alive.
  const std::byte* host = nullptr;
};

struct BufferOptions {
  std::int64_t bytes = 64 << 20;  // of all buffers together, at most
  bool several = true;            // fill one while others are written
};

// What is written and checksummed at a time. Chosen: small enough that the copy is still in a
// core's cache when its checksum is made (a third of the time of 16 MiB), large enough for any
// disk.
inline constexpr std::int64_t kWriteBytes = std::int64_t{2} << 20;

// Owns:    the buffers and the files it has opened.
// Threads: one caller at a time.
class PieceWriter {
 public:
  // `plan` and `disk` must outlive this; the plan's files exist in `folder`.
  PieceWriter(const FilePlan& plan, std::filesystem::path folder, const BufferOptions& buffers,
              Disk& disk);

  void write(const Piece& piece);
  // Waits and syncs every file that was written to; the result lists all blocks.
  Part finish();

  std::int64_t written_bytes() const { return written_bytes_; }

 private:
  struct Slot {
    std::shared_ptr<io::AlignedBuffer> buffer;  // shared with a write that may outlive this
    io::PendingIo write;
  };

  const io::File& file(int index);
  void write_block(const Piece& piece, TensorPlace place, std::int64_t begin, std::int64_t end);

  const FilePlan& plan_;
  std::filesystem::path folder_;
  Disk& disk_;
  std::int64_t block_bytes_;
  NullLogger silence_;
  std::vector<std::optional<io::File>> files_;
  std::vector<Slot> slots_;
  io::Ring ring_;
  std::size_t next_slot_ = 0;
  std::int64_t written_bytes_ = 0;
  Part part_;
};

}  // namespace capstan::checkpoint
