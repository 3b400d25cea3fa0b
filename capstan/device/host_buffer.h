// Host memory of exactly the size asked for, aligned for vectors and direct I/O, optionally pinned
// for copies to and from a device. (libtorch's pinned allocator rounds up to powers of two.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace capstan::device {

enum class HostMemory { pageable, pinned };

// A page: what direct I/O and pinning need, and more than any vector does.
inline constexpr std::int64_t kHostAlignBytes = 4096;

// Owns:    the memory; not initialised.
// Threads: one owner; the bytes are yours.
class HostBuffer {
 public:
  HostBuffer() = default;  // empty
  // Throws ConfigError when there is not enough memory, or when it cannot be pinned.
  explicit HostBuffer(std::int64_t bytes, HostMemory kind = HostMemory::pageable);
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, static_cast<std::size_t>(bytes_)}; }
  bool is_pinned() const { return pinned_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  bool pinned_ = false;
};

}  // namespace capstan::device
