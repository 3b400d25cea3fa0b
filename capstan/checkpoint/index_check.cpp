#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/file_plan.h"
#include "capstan/checkpoint/index.h"

namespace capstan::checkpoint {
namespace {

[[noreturn]] void refuse_index(std::string what, const std::string& source) {
  throw IoError({.what = std::move(what),
                 .where = source,
                 .fix = "the index is damaged or was edited by hand: load another checkpoint"});
}

using FilesByName = std::map<std::string_view, const FileFact*>;

FilesByName files_by_name(const Index& index, const std::string& source) {
  FilesByName files;
  for (const FileFact& file : index.files) {
    if (!files.emplace(file.name, &file).second) {
      refuse_index(fmt::format("file '{}' is listed twice in the index", file.name), source);
    }
  }
  return files;
}

void check_place(const IndexTensor& tensor, const StoredSlice& slice, const FilesByName& files,
                 const std::string& source) {
  const auto found = files.find(slice.file);
  if (found == files.end() || found->second->sum) {
    refuse_index(fmt::format("tensor '{}' is in '{}', which is not listed as a file of tensors",
                             tensor.spec.name, slice.file),
                 source);
  }
  const std::int64_t room = found->second->bytes - slice.begin;
  if (room < slice_spec(tensor.spec, slice.box).bytes()) {
    refuse_index(
        fmt::format("tensor '{}' extends past the end of {}", tensor.spec.name, slice.file),
        source);
  }
}

void check_slices(const IndexTensor& tensor, const FilesByName& files, const std::string& source) {
  for (const StoredSlice& slice : tensor.slices) check_place(tensor, slice, files, source);
  if (tensor.is_whole()) return;
  std::vector<layout::Box> boxes;
  for (const StoredSlice& slice : tensor.slices) boxes.push_back(slice.box);
  if (const auto found = layout::find_miscovered(boxes, tensor.spec.shape)) {
    refuse_index(miscovered_text(tensor.spec.name, *found), source);
  }
}

void check_text_files(const Index& index, const FilesByName& files, const std::string& source) {
  for (const auto& [key, file] : index.text_files) {
    const bool known =
        std::ranges::any_of(kTexts, [&](const auto& each) { return each.first == key; });
    const auto found = files.find(file);
    if (known && found != files.end() && found->second->sum) continue;
    refuse_index(
        fmt::format("'{}' refers to file '{}', which is not listed with a checksum", key, file),
        source);
  }
}

}  // namespace

bool is_loss_scale(const std::map<std::string, double>& fields) {
  return std::ranges::all_of(fields, [](const auto& field) {
    const auto& [name, value] = field;
    return name == "scale" ? std::isfinite(value) && value > 0
                           : std::abs(value) <= static_cast<double>(kMostCounted);
  });
}

void check(const Index& index, const std::string& source) {
  const FilesByName files = files_by_name(index, source);
  check_text_files(index, files, source);
  std::set<std::string_view> columns;
  for (const Column& column : index.columns) {
    if (!columns.insert(column.name).second) {
      refuse_index(fmt::format("column '{}' is listed twice in the index", column.name), source);
    }
    std::set<std::string_view> tensors;
    for (const IndexTensor& tensor : column.tensors) {
      if (!tensors.insert(tensor.spec.name).second) {
        refuse_index(fmt::format("tensor '{}' is listed twice in column '{}' of the index",
                                 tensor.spec.name, column.name),
                     source);
      }
      check_slices(tensor, files, source);
    }
  }
  const Column* const weights = index.find(kModelColumn);
  if (weights == nullptr || weights->tensors.empty()) {
    refuse_index("the index lists no weights", source);
  }
}

}  // namespace capstan::checkpoint
