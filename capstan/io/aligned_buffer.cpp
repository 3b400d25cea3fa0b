#include "capstan/io/aligned_buffer.h"

#include <cstdlib>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::io {

AlignedBuffer::AlignedBuffer(std::int64_t bytes) : size_bytes_(bytes) {
  if (bytes < 0) throw InternalError({.what = fmt::format("a buffer of {} bytes", bytes)});
  if (bytes == 0) return;
  const auto rounded = static_cast<std::size_t>(round_up_to_align(bytes));
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kDirectIoAlignBytes, rounded)));
  if (data_ == nullptr) {
    throw IoError({.what = fmt::format("no memory for an I/O buffer of {}", format_bytes(bytes)),
                   .where = "host memory",
                   .fix = "use smaller or fewer buffers, or free host memory (free -h)"});
  }
}

void AlignedBuffer::Free::operator()(std::byte* data) const noexcept { std::free(data); }

}  // namespace capstan::io
