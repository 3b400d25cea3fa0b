#include "capstan/io/split.h"

#include <vector>

#include <gtest/gtest.h>

#include "capstan/io/aligned_buffer.h"

namespace capstan::io {
namespace {

constexpr std::int64_t kBlock = 4 * kDirectIoAlignBytes;

std::vector<Piece> all_pieces(const Transfer& transfer, bool direct_allowed) {
  std::vector<Piece> pieces;
  for (std::int64_t begin = 0; begin < transfer.bytes; begin += pieces.back().bytes) {
    pieces.push_back(piece_at(transfer, begin, kBlock, direct_allowed));
  }
  return pieces;
}

TEST(Split, PiecesCoverTheTransferOnceAndDirectOnesAreAligned) {
  for (const std::int64_t offset : {0, 1, 511, 512, 4095, 4096, 4097, 123457}) {
    for (const std::int64_t bytes : {1, 511, 512, 513, 4095, 4096, 4097, 100000}) {
      for (const std::uintptr_t memory : {0, 1, 512, 4096}) {
        std::int64_t covered = 0;
        for (const Piece& piece : all_pieces({offset, memory, bytes}, true)) {
          EXPECT_EQ(piece.begin, covered);
          ASSERT_GT(piece.bytes, 0);
          EXPECT_LE(piece.bytes, kBlock);
          covered += piece.bytes;
          if (!piece.direct) continue;
          EXPECT_EQ((offset + piece.begin) % kDirectIoAlignBytes, 0);
          EXPECT_EQ(piece.bytes % kDirectIoAlignBytes, 0);
          EXPECT_EQ((memory + static_cast<std::uintptr_t>(piece.begin)) % kDirectIoAlignBytes, 0u);
        }
        EXPECT_EQ(covered, bytes);
      }
    }
  }
}

TEST(Split, AnAlignedTransferIsDirectUpToItsTail) {
  const std::vector<Piece> pieces =
      all_pieces({.offset = 8192, .memory = 4096, .bytes = 20483}, true);
  EXPECT_EQ(pieces,
            (std::vector<Piece>{{0, kBlock, true}, {kBlock, 4096, true}, {20480, 3, false}}));
}

TEST(Split, ATransferOffByTheSameAmountInFileAndMemoryIsDirectAfterItsHead) {
  const std::vector<Piece> pieces =
      all_pieces({.offset = 4096 + 100, .memory = 8192 + 100, .bytes = 2 * 4096}, true);
  EXPECT_EQ(pieces, (std::vector<Piece>{{0, 3996, false}, {3996, 4096, true}, {8092, 100, false}}));
}

TEST(Split, NothingIsDirectWhereTheFileDoesNotAllowIt) {
  for (const Piece& piece : all_pieces({.offset = 0, .memory = 0, .bytes = 100000}, false)) {
    EXPECT_FALSE(piece.direct);
  }
}

}  // namespace
}  // namespace capstan::io
