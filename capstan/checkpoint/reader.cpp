#include "capstan/checkpoint/reader.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/checksum.h"
#include "capstan/checkpoint/file_bytes.h"

namespace capstan::checkpoint {

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

std::span<const std::byte> Reader::read_block(const IndexTensor& tensor, std::int64_t begin,
                                              const Block& block) {
  const std::int64_t bytes = block.end - begin;
  if (buffer_.size_bytes() < bytes) buffer_ = io::AlignedBuffer(bytes);
  const std::span<std::byte> into = buffer_.bytes().first(static_cast<std::size_t>(bytes));
  read_bytes(file(tensor.file), tensor.begin + begin, into);
  if (checksum(into) != block.sum) {
    throw IoError(
        {.what = fmt::format("tensor '{}' is damaged: the checksum of its bytes {} to {} is not "
                             "the one they were saved with",
                             tensor.spec.name, begin, block.end),
         .where =
             fmt::format("{}, offset {}", (folder_ / tensor.file).string(), tensor.begin + begin),
         .fix = "load another checkpoint; `capstan checkpoint verify` shows which are whole"});
  }
  return into;
}

void Reader::read(const IndexTensor& tensor, std::int64_t begin, std::int64_t end,
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
  auto block =
      std::upper_bound(tensor.blocks.begin(), tensor.blocks.end(), begin,
                       [](std::int64_t offset, const Block& each) { return offset < each.end; });
  std::int64_t block_begin = block == tensor.blocks.begin() ? 0 : std::prev(block)->end;
  for (; block != tensor.blocks.end() && block_begin < end; block_begin = block->end, ++block) {
    const std::span<const std::byte> bytes = read_block(tensor, block_begin, *block);
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
