#include "capstan/io/aligned_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::io {

AlignedBuffer::AlignedBuffer(std::int64_t bytes, Pages pages) : size_bytes_(bytes) {
  if (bytes < 0) throw InternalError({.what = fmt::format("a buffer of {} bytes", bytes)});
  if (bytes == 0) return;
  const auto mapped = static_cast<std::size_t>(round_up_to_align(bytes));
  void* memory =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw IoError({.what = fmt::format("no memory for an I/O buffer of {}", format_bytes(bytes)),
                   .where = "host memory",
                   .fix = "use smaller or fewer buffers, or free host memory (free -h)"});
  }
  // Only a wish: where the system has none, small ones do.
  if (pages == Pages::huge) ::madvise(memory, mapped, MADV_HUGEPAGE);
  data_ = std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(memory), Unmap{mapped});
}

void AlignedBuffer::Unmap::operator()(std::byte* data) const noexcept {
  ::munmap(data, mapped_bytes);
}

}  // namespace capstan::io
