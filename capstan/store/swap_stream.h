// Swap memory as a stream: tiles are read ahead of their use and written back behind it, past the
// mapping and the page cache.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "capstan/io/aligned_buffer.h"
#include "capstan/io/ring.h"
#include "capstan/store/swap_files.h"

namespace capstan::store {

// Spans of swap memory that are used together.
using SwapTile = std::vector<std::span<std::byte>>;

// Owns:    the buffers, and the transfers in flight.
// Threads: one caller at a time.
class SwapStream {
 public:
  // At least three buffers: one is read, one is used, one is written. `files` and `ring` must
  // outlive this.
  SwapStream(const SwapFiles& files, io::Ring& ring, int buffer_count);

  // Begins to read. The stream before it is finished.
  void start(std::vector<SwapTile> tiles);
  // The next tile's bytes in host memory, one pointer for each span: valid, and to be changed,
  // until the next call. Throws IoError that names file and offset.
  std::vector<std::byte*> next();
  // Returns when all that was used is on its way back to the disk and has arrived.
  void finish();

 private:
  struct Buffer {
    std::shared_ptr<io::AlignedBuffer> memory;
    std::vector<io::PendingIo> transfers;

    void wait();
  };

  Buffer& buffer_of(std::size_t tile) { return buffers_[tile % buffers_.size()]; }
  void read_ahead();
  void read(std::size_t tile);
  void write(std::size_t tile);

  const SwapFiles& files_;
  io::Ring& ring_;
  std::vector<Buffer> buffers_;
  std::vector<SwapTile> tiles_;
  std::size_t used_ = 0;  // tiles that next() gave out
  std::size_t read_ = 0;  // tiles whose read was started
  std::size_t written_ = 0;
};

}  // namespace capstan::store
