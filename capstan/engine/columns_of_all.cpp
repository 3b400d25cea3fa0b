#include "capstan/engine/columns_of_all.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/checksum.h"
#include "capstan/comm/numbers.h"
#include "capstan/engine/counts_text.h"
#include "capstan/engine/together.h"

namespace capstan::engine {
namespace {

using checkpoint::ColumnSpec;
using checkpoint::TensorSpec;
using layout::Box;

// In no name.
constexpr char kEnd = '\0';

// A tensor takes five fields: its column, name, dtype and shape, and the offset and length of each
// slice that this rank has of it.
constexpr std::size_t kFields = 5;

std::string to_text(const std::vector<ColumnSpec>& columns) {
  std::string text;
  for (const ColumnSpec& column : columns) {
    for (const TensorSpec& tensor : column.tensors) {
      std::vector<std::string> boxes;
      if (const auto cut = column.slices.find(tensor.name); cut != column.slices.end()) {
        for (const Box& box : cut->second) {
          boxes.push_back(counts_text(box.offset) + ";" + counts_text(box.length));
        }
      }
      for (const std::string& field :
           {column.name, tensor.name, std::string(name(tensor.element)), counts_text(tensor.shape),
            fmt::format("{}", fmt::join(boxes, ";"))}) {
        text += field + kEnd;
      }
    }
  }
  return text;
}

std::vector<ColumnSpec> read_columns(const std::string& text) {
  std::vector<ColumnSpec> columns;
  const std::vector<std::string> fields = split(text, kEnd);
  for (std::size_t i = 0; i + kFields <= fields.size(); i += kFields) {
    if (columns.empty() || columns.back().name != fields[i]) columns.push_back({fields[i], {}});
    columns.back().tensors.push_back({fields[i + 1],
                                      checkpoint::element_named(fields[i + 2]).value(),
                                      read_counts(fields[i + 3])});
    if (fields[i + 4].empty()) continue;
    const std::vector<std::string> counts = split(fields[i + 4], ';');
    for (std::size_t b = 0; b + 1 < counts.size(); b += 2) {
      columns.back().slices[fields[i + 1]].push_back(
          {read_counts(counts[b]), read_counts(counts[b + 1])});
    }
  }
  return columns;
}

ColumnSpec& column_named(std::vector<ColumnSpec>& columns, const std::string& name) {
  const auto found = std::ranges::find(columns, name, &ColumnSpec::name);
  if (found != columns.end()) return *found;
  columns.push_back({name, {}});
  return columns.back();
}

// Sorted, each once.
void add_slices(std::vector<Box>& boxes, const std::vector<Box>& more) {
  for (const Box& box : more) {
    const auto at = std::ranges::lower_bound(boxes, box);
    if (at == boxes.end() || *at != box) boxes.insert(at, box);
  }
}

}  // namespace

std::vector<ColumnSpec> merge_columns(const std::vector<std::vector<ColumnSpec>>& ranks) {
  std::vector<ColumnSpec> all;
  std::map<std::pair<std::string, std::string>, TensorSpec> known;  // by column and name
  for (const std::vector<ColumnSpec>& mine : ranks) {
    for (const ColumnSpec& column : mine) {
      ColumnSpec& into = column_named(all, column.name);
      for (const TensorSpec& tensor : column.tensors) {
        const auto [first, is_new] = known.emplace(std::pair(column.name, tensor.name), tensor);
        if (is_new) into.tensors.push_back(tensor);
        if (first->second == tensor) continue;
        throw ConfigError(
            {.what = fmt::format("'{}' is {} on one rank and {} on another", tensor.name,
                                 checkpoint::to_text(first->second), checkpoint::to_text(tensor)),
             .where = fmt::format("column {} of a checkpoint", column.name),
             .fix = "build the same model on every rank"});
      }
      for (const auto& [tensor, boxes] : column.slices) add_slices(into.slices[tensor], boxes);
    }
  }
  return all;
}

std::vector<ColumnSpec> columns_of_all(comm::Group& group, c10::Device device,
                                       std::vector<ColumnSpec> mine) {
  const std::string text = to_text(mine);
  const auto sum =
      static_cast<std::int64_t>(checkpoint::checksum(std::as_bytes(std::span(text))) >> 1);
  const auto sums = comm::from_all_ranks(group, device, sum, "tensors to save");
  if (std::ranges::count(sums, sum) == std::ssize(sums)) return mine;
  std::vector<std::vector<ColumnSpec>> different;
  for (auto rank = sums.begin(); rank != sums.end(); ++rank) {
    if (std::find(sums.begin(), rank, *rank) != rank) continue;  // as that one
    different.push_back(
        read_columns(text_from(group, device, text, static_cast<int>(rank - sums.begin()))));
  }
  return merge_columns(different);
}

}  // namespace capstan::engine
