// Reads ranges of a checkpoint's tensors and checks every block that it touches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "capstan/checkpoint/index.h"
#include "capstan/io/aligned_buffer.h"
#include "capstan/io/file.h"
#include "capstan/layout/box.h"

namespace capstan::checkpoint {

// Takes bytes of a tensor, in order; `begin` is where they stand in it.
using Sink = std::function<void(std::int64_t begin, std::span<const std::byte> bytes)>;

// Reads bytes of a tensor from `begin` on, where they do not lie in one place of one file.
using Source =
    std::function<void(const IndexTensor& tensor, std::int64_t begin, std::span<std::byte> into)>;

// Owns:    its open files, one buffer of a block, and one more where slices are put together.
// Threads: one caller at a time.
class Reader {
 public:
  // `folder` is one checkpoint. Throws IoError when its index cannot be read or is damaged.
  explicit Reader(std::filesystem::path folder);
  // Files of another layout, whose tensors `index` tells: nothing is checked.
  Reader(std::filesystem::path folder, Index index, Source source);

  const std::filesystem::path& folder() const { return folder_; }
  const Index& index() const { return index_; }
  // Null when there is none.
  const IndexTensor* find(const std::string& column, const std::string& tensor) const;

  // Bytes [begin, end) of the tensor. Throws IoError that names a damaged tensor; the sink has
  // then seen only bytes of whole blocks.
  void read(const IndexTensor& tensor, std::int64_t begin, std::int64_t end, const Sink& sink);
  // Likewise of a box of the tensor, however its files are cut: bytes count from the first of the
  // box, whose elements are in row-major order. Requires that
  // the box fits, and that the bytes are whole elements.
  void read(const IndexTensor& tensor, const layout::Box& box, std::int64_t begin, std::int64_t end,
            const Sink& sink);
  std::string read_extra_file(const std::string& name) const;

 private:
  void read_texts();
  void list_tensors();
  const io::File& file(const std::string& name);
  // Checked bytes of a slice, as many as are read at once.
  struct Stretch {
    std::int64_t begin = 0;
    std::span<const std::byte> bytes;  // in buffer_
    bool has(std::int64_t at) const { return at >= begin && at < begin + std::ssize(bytes); }
  };
  void read_whole(const IndexTensor& tensor, std::int64_t begin, std::int64_t end,
                  const Sink& sink);
  Stretch read_stretch(const IndexTensor& tensor, const StoredSlice& slice, std::int64_t at);
  std::span<const std::byte> read_block(const IndexTensor& tensor, const StoredSlice& slice,
                                        std::int64_t begin, const Block& block);
  void copy_shared(const IndexTensor& tensor, const layout::Box& box, layout::ElemRange elems,
                   std::span<std::byte> into);

  std::filesystem::path folder_;
  Index index_;
  Source source_;  // none for files of ours
  std::map<std::pair<std::string, std::string>, const IndexTensor*> tensors_;
  std::map<std::string, io::File> files_;
  io::AlignedBuffer buffer_;
  io::AlignedBuffer assembled_;  // elements of a box, from several places
};

}  // namespace capstan::checkpoint
