// Host memory whose start and size satisfy direct I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace capstan::io {

// Required by O_DIRECT: every disk's logical block (512 or 4096) divides it, and it is the page
// size, so that a direct and a buffered transfer never meet in one page of the cache.
inline constexpr std::int64_t kDirectIoAlignBytes = 4096;

constexpr std::int64_t round_up_to_align(std::int64_t bytes) {
  return (bytes + kDirectIoAlignBytes - 1) / kDirectIoAlignBytes * kDirectIoAlignBytes;
}

// A request over small pages scattered in memory is pinned page by page and cut where the disk's
// list of pages is full; over huge ones it is one piece. They take longer to get: for what lives
// long.
enum class Pages { small, huge };

// Owns:    the memory, whole pages straight from the system; its contents start as zeros.
// Threads: as for an array of bytes.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Throws IoError when the memory is not to be had.
  explicit AlignedBuffer(std::int64_t bytes, Pages pages = Pages::small);

  std::span<std::byte> bytes() { return {data_.get(), static_cast<std::size_t>(size_bytes_)}; }
  std::span<const std::byte> bytes() const {
    return {data_.get(), static_cast<std::size_t>(size_bytes_)};
  }
  std::int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Unmap {
    std::size_t mapped_bytes;
    void operator()(std::byte* data) const noexcept;
  };
  std::unique_ptr<std::byte, Unmap> data_;
  std::int64_t size_bytes_ = 0;
};

}  // namespace capstan::io
