#include "capstan/checkpoint/piece_writer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "capstan/checkpoint/checksum.h"
#include "capstan/checkpoint/file_bytes.h"

namespace capstan::checkpoint {
namespace {

// Enough that copying and writing overlap and the disk's queue is never empty; more only costs
// memory.
constexpr int kBuffers = 8;

// A disk that has not taken a block by then has failed.
constexpr std::chrono::minutes kWritePatience{10};

std::int64_t bytes_per_buffer(const BufferOptions& options) {
  const std::int64_t share = options.several ? options.bytes / kBuffers : options.bytes;
  const std::int64_t limit = std::min(share, kWriteBytes);
  return std::max(limit / io::kDirectIoAlignBytes, std::int64_t{1}) * io::kDirectIoAlignBytes;
}

}  // namespace

PieceWriter::PieceWriter(const FilePlan& plan, std::filesystem::path folder,
                         const BufferOptions& buffers, Disk& disk)
    : plan_(plan),
      folder_(std::move(folder)),
      disk_(disk),
      block_bytes_(bytes_per_buffer(buffers)),
      files_(plan.files.size()),
      slots_(buffers.several ? kBuffers : 1),
      ring_({}, silence_, disk.open_queue({})) {
  for (Slot& slot : slots_) {
    slot.buffer = std::make_shared<io::AlignedBuffer>(block_bytes_ + io::kDirectIoAlignBytes);
  }
}

const io::File& PieceWriter::file(int index) {
  std::optional<io::File>& opened = files_[static_cast<std::size_t>(index)];
  if (!opened) {
    opened = io::File::open(folder_ / plan_.files[static_cast<std::size_t>(index)].name,
                            {.access = io::Access::read_write, .direct = true});
  }
  return *opened;
}

void PieceWriter::write(const Piece& piece) {
  const TensorPlace place = plan_.place(piece.column, piece.tensor);
  for (std::int64_t begin = piece.begin; begin < piece.end; begin += block_bytes_) {
    write_block(piece, place, begin, std::min(begin + block_bytes_, piece.end));
  }
}

void PieceWriter::write_block(const Piece& piece, TensorPlace place, std::int64_t begin,
                              std::int64_t end) {
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  slot.write.wait_at_most(kWritePatience);
  const std::int64_t offset = plan_.stored(place).begin + begin;
  // Memory aligned like the file: the middle of the block can go to the disk directly.
  const std::span<std::byte> bytes =
      slot.buffer->bytes().subspan(static_cast<std::size_t>(offset % io::kDirectIoAlignBytes),
                                   static_cast<std::size_t>(end - begin));
  piece.fill(begin, bytes);
  slot.write = ring_.write(file(place.file), offset, bytes, slot.buffer);
  part_.blocks.push_back({place.file, place.tensor, begin, end, checksum(bytes)});
  written_bytes_ += end - begin;
}

Part PieceWriter::finish() {
  for (Slot& slot : slots_) slot.write.wait_at_most(kWritePatience);
  for (const std::optional<io::File>& file : files_) {
    if (file) sync_file(*file, disk_.calls);
  }
  return std::move(part_);
}

}  // namespace capstan::checkpoint
