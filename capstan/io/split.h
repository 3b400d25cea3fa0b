// Cuts a transfer of any offset, length and memory address into pieces that the kernel can do at
// once, each one either direct (past the page cache) or through it. Pure arithmetic.
#pragma once

#include <cstdint>

namespace capstan::io {

// One piece: [begin, begin + bytes) counted from the start of the transfer.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
  bool direct = false;

  bool operator==(const Piece&) const = default;
};

struct Transfer {
  std::int64_t offset = 0;    // in the file
  std::uintptr_t memory = 0;  // address of the first byte
  std::int64_t bytes = 0;
};

//   file   |....head|####|####|####|tail....|        | = multiple of kDirectIoAlignBytes
//           through   direct, at most      through
//           the cache block_bytes each     the cache
//
// The piece that starts at `begin` (0 <= begin < transfer.bytes). Direct pieces start and end on
// aligned file offsets, so no page is ever met by both kinds; where the memory is not aligned
// alike, or direct_allowed is false, everything goes through the cache, cut at the same places.
// block_bytes must be a positive multiple of kDirectIoAlignBytes.
[[nodiscard]] Piece piece_at(const Transfer& transfer, std::int64_t begin, std::int64_t block_bytes,
                             bool direct_allowed);

}  // namespace capstan::io
