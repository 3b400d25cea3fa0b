#include "capstan/checkpoint/reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/checksum.h"
#include "capstan/checkpoint/file_bytes.h"

namespace capstan::checkpoint {
namespace {

// The one that holds this byte.
std::vector<Block>::const_iterator block_at(const StoredSlice& slice, std::int64_t at) {
  return std::upper_bound(slice.blocks.begin(), slice.blocks.end(), at,
                          [](std::int64_t byte, const Block& each) { return byte < each.end; });
}

}  // namespace

Reader::Reader(std::filesystem::path folder)
    : folder_(std::move(folder)), index_(read_index(folder_)) {
  read_texts();
  list_tensors();
}

Reader::Reader(std::filesystem::path folder, Index index, Source source)
    : folder_(std::move(folder)), index_(std::move(index)), source_(std::move(source)) {
  list_tensors();
}

void Reader::read_texts() {
  for (const auto& [key, member] : kTexts) {
    const auto name = index_.text_files.find(key);
    if (name == index_.text_files.end()) continue;
    const auto file = std::ranges::find(index_.files, name->second, &FileFact::name);
    std::string& text = index_.state.*member;
    text = read_extra_file(file->name);
    if (file->sum == checksum(std::as_bytes(std::span(text)))) continue;
    throw IoError(
        {.what = fmt::format("{} is damaged: its checksum is not the one it was saved with",
                             file->name),
         .where = folder_.string(),
         .fix = "load another checkpoint; `capstan checkpoint verify` shows which are whole"});
  }
}

void Reader::list_tensors() {
  for (const Column& column : index_.columns) {
    for (const IndexTensor& tensor : column.tensors) {
      tensors_[{column.name, tensor.spec.name}] = &tensor;
    }
  }
}

const IndexTensor* Reader::find(const std::string& column, const std::string& tensor) const {
  const auto found = tensors_.find({column, tensor});
  return found == tensors_.end() ? nullptr : found->second;
}

const io::File& Reader::file(const std::string& name) {
  const auto opened = files_.find(name);
  if (opened != files_.end()) return opened->second;
  io::File file = io::File::open(folder_ / name, {});
  const auto fact = std::find_if(index_.files.begin(), index_.files.end(),
                                 [&](const FileFact& each) { return each.name == name; });
  if (fact != index_.files.end() && file.size_bytes() != fact->bytes) {
    throw IoError(
        {.what = fmt::format("the file has {} bytes instead of {}", file.size_bytes(), fact->bytes),
         .where = file.path().string(),
         .fix = "load another checkpoint; `capstan checkpoint verify` shows which are whole"});
  }
  return files_.emplace(name, std::move(file)).first->second;
}

std::span<const std::byte> Reader::read_block(const IndexTensor& tensor, const StoredSlice& slice,
                                              std::int64_t begin, const Block& block) {
  const std::int64_t bytes = block.end - begin;
  if (buffer_.size_bytes() < bytes) buffer_ = io::AlignedBuffer(bytes);
  const std::span<std::byte> into = buffer_.bytes().first(static_cast<std::size_t>(bytes));
  read_bytes(file(slice.file), slice.begin + begin, into);
  if (checksum(into) != block.sum) {
    throw IoError(
        {.what = fmt::format("tensor '{}' is damaged: the checksum of its bytes {} to {} is not "
                             "the one they were saved with",
                             slice_spec(tensor.spec, slice.box).name, begin, block.end),
         .where =
             fmt::format("{}, offset {}", (folder_ / slice.file).string(), slice.begin + begin),
         .fix = "load another checkpoint; `capstan checkpoint verify` shows which are whole"});
  }
  return into;
}

void Reader::read(const IndexTensor& tensor, std::int64_t begin, std::int64_t end,
                  const Sink& sink) {
  read(tensor, layout::whole_box(tensor.spec.shape), begin, end, sink);
}

void Reader::read(const IndexTensor& tensor, const layout::Box& box, std::int64_t begin,
                  std::int64_t end, const Sink& sink) {
  if (tensor.is_whole() && tensor.slices.front().box == box) {
    read_whole(tensor, begin, end, sink);
    return;
  }
  const std::int64_t size = size_bytes(tensor.spec.element);
  if (begin % size != 0 || end % size != 0) {
    throw InternalError({.what = fmt::format("bytes {} to {} of '{}' are not whole elements", begin,
                                             end, tensor.spec.name)});
  }
  if (assembled_.size_bytes() == 0) assembled_ = io::AlignedBuffer(kBlockBytes);
  for (; begin < end; begin += kBlockBytes) {
    const std::int64_t stop = std::min(end, begin + kBlockBytes);
    const std::span<std::byte> bytes =
        assembled_.bytes().first(static_cast<std::size_t>(stop - begin));
    copy_shared(tensor, box, {begin / size, stop / size}, bytes);
    sink(begin, bytes);
  }
}

// From every slice what it has of these elements of the box.
void Reader::copy_shared(const IndexTensor& tensor, const layout::Box& box, layout::ElemRange elems,
                         std::span<std::byte> into) {
  const std::int64_t size = size_bytes(tensor.spec.element);
  for (const StoredSlice& slice : tensor.slices) {
    Stretch stretch;
    layout::for_each_run(slice.box, box, elems, [&](const layout::SharedRun& run) {
      std::byte* to = into.data() + (run.to - elems.begin) * size;
      const std::int64_t end = (run.from + run.elems) * size;
      for (std::int64_t at = run.from * size; at < end;) {
        if (!stretch.has(at)) stretch = read_stretch(tensor, slice, at);
        const auto rest = stretch.bytes.subspan(static_cast<std::size_t>(at - stretch.begin));
        const std::int64_t count = std::min(end - at, std::ssize(rest));
        std::memcpy(to, rest.data(), static_cast<std::size_t>(count));
        to += count;
        at += count;
      }
    });
  }
}

Reader::Stretch Reader::read_stretch(const IndexTensor& tensor, const StoredSlice& slice,
                                     std::int64_t at) {
  if (source_) {
    if (buffer_.size_bytes() == 0) buffer_ = io::AlignedBuffer(kBlockBytes);
    const std::int64_t begin = at / kBlockBytes * kBlockBytes;
    const std::int64_t count = std::min(kBlockBytes, tensor.spec.bytes() - begin);
    const std::span<std::byte> bytes = buffer_.bytes().first(static_cast<std::size_t>(count));
    source_(tensor, begin, bytes);
    return {begin, bytes};
  }
  const auto block = block_at(slice, at);
  const std::int64_t begin = block == slice.blocks.begin() ? 0 : std::prev(block)->end;
  return {begin, read_block(tensor, slice, begin, *block)};
}

void Reader::read_whole(const IndexTensor& tensor, std::int64_t begin, std::int64_t end,
                        const Sink& sink) {
  if (source_) {
    if (buffer_.size_bytes() == 0) buffer_ = io::AlignedBuffer(kBlockBytes);
    for (; begin < end; begin += kBlockBytes) {
      const std::span<std::byte> bytes =
          buffer_.bytes().first(static_cast<std::size_t>(std::min(end - begin, kBlockBytes)));
      source_(tensor, begin, bytes);
      sink(begin, bytes);
    }
    return;
  }
  const StoredSlice& slice = tensor.slices.front();
  auto block = block_at(slice, begin);
  std::int64_t block_begin = block == slice.blocks.begin() ? 0 : std::prev(block)->end;
  for (; block != slice.blocks.end() && block_begin < end; block_begin = block->end, ++block) {
    const std::span<const std::byte> bytes = read_block(tensor, slice, block_begin, *block);
    const std::int64_t from = std::max(begin, block_begin);
    const std::int64_t to = std::min(end, block->end);
    sink(from, bytes.subspan(static_cast<std::size_t>(from - block_begin),
                             static_cast<std::size_t>(to - from)));
  }
}

std::string Reader::read_extra_file(const std::string& name) const {
  return read_text_file(folder_ / name);
}

}  // namespace capstan::checkpoint
