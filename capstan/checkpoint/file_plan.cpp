#include "capstan/checkpoint/file_plan.h"

#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/json/writer.h"

namespace capstan::checkpoint {
namespace {

// At most, of a tensor in the header beside its name.
constexpr std::int64_t kHeaderEntryBytes = 100;
constexpr std::int64_t kHeaderDimBytes = 22;

std::vector<std::vector<TensorSpec>> cut_into_files(const std::vector<TensorSpec>& tensors,
                                                    std::int64_t max_bytes) {
  std::vector<std::vector<TensorSpec>> files(1);
  std::int64_t bytes = 0;
  std::int64_t header_bytes = 0;
  for (const TensorSpec& spec : tensors) {
    const std::int64_t entry_bytes = std::ssize(json::write(json::Value(spec.name))) +
                                     kHeaderEntryBytes + kHeaderDimBytes * std::ssize(spec.shape);
    if (!files.back().empty() &&
        (bytes + spec.bytes() > max_bytes || header_bytes + entry_bytes > kMaxHeaderBytes)) {
      files.emplace_back();
      bytes = 0;
      header_bytes = 0;
    }
    files.back().push_back(spec);
    bytes += spec.bytes();
    header_bytes += entry_bytes;
  }
  return files;
}

void check_slices(const TensorSpec& tensor, const std::vector<layout::Box>& boxes) {
  for (const layout::Box& box : boxes) {
    if (layout::fits(box, tensor.shape)) continue;
    throw InternalError(
        {.what = fmt::format("slice {} is not inside {}", to_text(box), to_text(tensor))});
  }
  if (const auto found = layout::find_miscovered(boxes, tensor.shape)) {
    throw InternalError({.what = miscovered_text(tensor.name, *found)});
  }
}

// The tensors as files have them: whole ones, and slices of the others, side by side.
std::vector<TensorSpec> stored_tensors(const ColumnSpec& column, FilePlan& plan) {
  std::vector<TensorSpec> stored;
  for (const TensorSpec& tensor : column.tensors) {
    const auto cut = column.slices.find(tensor.name);
    if (cut == column.slices.end()) {
      stored.push_back(tensor);
      continue;
    }
    check_slices(tensor, cut->second);
    for (const layout::Box& box : cut->second) {
      stored.push_back(slice_spec(tensor, box));
      plan.slices.insert({{column.name, stored.back().name}, {tensor, box}});
    }
  }
  return stored;
}

std::string file_name(const std::string& column, std::size_t index, std::size_t count) {
  if (count == 1) return column + ".safetensors";
  return fmt::format("{}-{:05}-of-{:05}.safetensors", column, index + 1, count);
}

}  // namespace

TensorPlace FilePlan::place(const std::string& column, const std::string& tensor) const {
  const auto found = places.find({column, tensor});
  if (found == places.end()) {
    throw InternalError({.what = fmt::format("'{}' of '{}' was not planned", tensor, column)});
  }
  return found->second;
}

const StoredTensor& FilePlan::stored(TensorPlace place) const {
  return files[static_cast<std::size_t>(place.file)]
      .contents.tensors[static_cast<std::size_t>(place.tensor)];
}

std::int64_t FilePlan::bytes() const {
  return std::accumulate(
      files.begin(), files.end(), std::int64_t{0},
      [](std::int64_t sum, const PlannedFile& file) { return sum + file.contents.file_bytes; });
}

std::string miscovered_text(const std::string& tensor, const layout::Miscovered& found) {
  return fmt::format("element [{}] of tensor '{}' is held by {} instead of 1",
                     fmt::join(found.at, ", "), tensor, counted(found.boxes, "slice"));
}

FilePlan plan_files(const std::vector<ColumnSpec>& columns, std::int64_t max_file_bytes) {
  FilePlan plan;
  for (const ColumnSpec& column : columns) {
    if (column.tensors.empty()) continue;
    const auto files = cut_into_files(stored_tensors(column, plan), max_file_bytes);
    for (std::size_t i = 0; i < files.size(); ++i) {
      for (std::size_t t = 0; t < files[i].size(); ++t) {
        const TensorPlace place{static_cast<int>(plan.files.size()), static_cast<int>(t)};
        if (!plan.places.emplace(std::pair(column.name, files[i][t].name), place).second) {
          throw ConfigError({.what = fmt::format("two tensors are named '{}'", files[i][t].name),
                             .where = "column " + column.name + " of a checkpoint",
                             .fix = "give every parameter and buffer a name of its own"});
        }
      }
      plan.files.push_back({file_name(column.name, i, files.size()), column.name,
                            lay_out(files[i], {{"format", "pt"}})});
    }
  }
  return plan;
}

std::string weights_index(const FilePlan& plan) {
  json::Value map{json::Object{}};
  std::int64_t bytes = 0;
  int files = 0;
  for (const PlannedFile& file : plan.files) {
    if (file.column != kModelColumn) continue;
    ++files;
    for (const StoredTensor& tensor : file.contents.tensors) {
      bytes += tensor.spec.bytes();
      map.object()->push_back({tensor.spec.name, json::Value(file.name), {}});
    }
  }
  if (files < 2) return "";
  json::Value metadata{json::Object{}};
  metadata.add("total_size", json::Value(bytes));
  json::Value root{json::Object{}};
  root.add("metadata", std::move(metadata)).add("weight_map", std::move(map));
  return json::write(root) + "\n";
}

}  // namespace capstan::checkpoint
