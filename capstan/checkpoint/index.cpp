#include "capstan/checkpoint/index.h"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/checksum.h"
#include "capstan/checkpoint/file_bytes.h"

namespace capstan::checkpoint {

IndexTensor IndexTensor::whole(TensorSpec spec, std::string file, std::int64_t begin,
                               std::vector<Block> blocks) {
  StoredSlice slice{layout::whole_box(spec.shape), std::move(file), begin, std::move(blocks)};
  return {std::move(spec), {std::move(slice)}};
}

bool IndexTensor::is_whole() const {
  return slices.size() == 1 && slices.front().box == layout::whole_box(spec.shape);
}

bool IndexTensor::is_in(std::string_view file) const {
  return std::ranges::any_of(slices, [&](const StoredSlice& each) { return each.file == file; });
}

const IndexTensor* Column::find(std::string_view tensor) const {
  const auto at = std::find_if(tensors.begin(), tensors.end(),
                               [&](const IndexTensor& each) { return each.spec.name == tensor; });
  return at == tensors.end() ? nullptr : &*at;
}

const Column* Index::find(std::string_view column) const {
  const auto at = std::find_if(columns.begin(), columns.end(),
                               [&](const Column& each) { return each.name == column; });
  return at == columns.end() ? nullptr : &*at;
}

const IndexTensor& Index::tensor(std::string_view column, std::string_view tensor) const {
  const Column* const in = find(column);
  const IndexTensor* const found = in == nullptr ? nullptr : in->find(tensor);
  if (found != nullptr) return *found;
  throw ConfigError({.what = fmt::format("there is no tensor '{}' in '{}'", tensor, column),
                     .where = "checkpoint " + tag,
                     .fix = "list what it has with: capstan checkpoint inspect"});
}

Index read_index(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kIndexFile;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw IoError({.what = fmt::format("there is no {} in it", kIndexFile),
                   .where = folder.string(),
                   .fix = "give the folder of one checkpoint, or the tag of one that exists"});
  }
  const std::string text = read_text_file(path);
  const auto expected = read_checksum(read_text_file(folder / kIndexChecksumFile).substr(0, 16));
  const std::uint64_t sum = checksum(std::as_bytes(std::span(text)));
  if (expected != sum) {
    throw IoError(
        {.what = "the index is damaged: its checksum is " + checksum_text(sum),
         .where = path.string(),
         .fix = "load another checkpoint; `capstan checkpoint verify` shows which are whole"});
  }
  return index_from_json(text, path.string());
}

}  // namespace capstan::checkpoint
