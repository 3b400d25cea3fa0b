// Swap memory as a stream: tiles are read ahead of their use and written back behind it, past the
// mapping and the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "capstan/io/aligned_buffer.h"
#include "capstan/io/ring.h"
#include "capstan/profile/recorder.h"
#include "capstan/store/home.h"
#include "capstan/store/swap_files.h"

namespace capstan::store {

// Owns:    the host memory that tiles pass through, and the transfers in flight.
// Threads: one caller at a time.
class SwapStream {
 public:
  // The memory holds so many of the largest tiles, three at least: one is read, one is used, one is
  // written. Of smaller tiles it holds more. `recorder` gets the read and the write of each tile,
  // from its start until its end is seen, and the waits for them; null: nobody does. It, `files`
  // and `ring` must outlive this.
  SwapStream(const SwapFiles& files, io::Ring& ring, int buffer_count,
             profile::Recorder* recorder = nullptr);

  // Begins to read. The stream before it is finished.
  void start(std::vector<Spans> tiles);
  // Whether that is the tile which next() gives.
  bool next_is(const Spans& tile) const;
  // The next tile's bytes in host memory, one pointer for each span: valid, and to be changed,
  // until the next call. Throws IoError that names file and offset.
  std::vector<std::byte*> next();
  // All that was used is on its way back to the disk; an error comes with the next call.
  void write_used();
  // Returns when it has arrived.
  void finish();

 private:
  // A tile in memory, from its read to the end of its write.
  struct Held {
    std::int64_t begin = 0;  // in the memory
    std::int64_t bytes = 0;
    std::vector<io::PendingIo> transfers;
    profile::Span span;  // of the transfers

    bool done() const;
    void wait(profile::Recorder* recorder);
  };

  Held& held(std::size_t tile) { return held_[tile - (read_ - held_.size())]; }
  // Where the next tile that is read goes; none: older ones must leave first.
  std::optional<std::int64_t> room_for(std::int64_t bytes) const;
  bool read_one();
  void read_ahead();
  void read_up_to(std::size_t tile);

  const SwapFiles& files_;
  io::Ring& ring_;
  const std::int64_t buffer_count_;
  profile::Recorder* const recorder_;
  std::shared_ptr<io::AlignedBuffer> memory_;  // with the ring, while the disk may write to it
  std::deque<Held> held_;                      // the last one is tile read_ - 1
  std::vector<Spans> tiles_;
  std::size_t read_ = 0;  // tiles whose read was started
  std::size_t used_ = 0;  // tiles that next() gave out
  std::size_t written_ = 0;
};

}  // namespace capstan::store
