#include "capstan/io/split.h"

#include <algorithm>

#include "capstan/io/aligned_buffer.h"

namespace capstan::io {

Piece piece_at(const Transfer& transfer, std::int64_t begin, std::int64_t block_bytes,
               bool direct_allowed) {
  const std::int64_t left = transfer.bytes - begin;
  const std::int64_t beyond = (transfer.offset + begin) % kDirectIoAlignBytes;
  if (beyond != 0) {
    return {.begin = begin, .bytes = std::min(left, kDirectIoAlignBytes - beyond)};
  }
  if (left < kDirectIoAlignBytes) return {.begin = begin, .bytes = left};
  const std::int64_t aligned = left / kDirectIoAlignBytes * kDirectIoAlignBytes;
  const std::uintptr_t memory = transfer.memory + static_cast<std::uintptr_t>(begin);
  return {.begin = begin,
          .bytes = std::min(aligned, block_bytes),
          .direct = direct_allowed && memory % kDirectIoAlignBytes == 0};
}

}  // namespace capstan::io
