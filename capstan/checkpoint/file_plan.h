// Which file of a checkpoint holds which tensor at which byte: a value that every rank computes by
// itself from the logical tensors, so that ranks write into shared files without talking.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "capstan/checkpoint/safetensors.h"

namespace capstan::checkpoint {

// The column of the weights: its files have the names that Hugging Face looks for.
inline constexpr const char* kModelColumn = "model";
inline constexpr const char* kMasterColumn = "master";
inline constexpr const char* kRngColumn = "rng";
inline constexpr const char* kClientColumn = "client";
inline constexpr const char* kOptimizerPrefix = "optimizer.";  // + the state's name

// Larger columns are split over several files, as Hugging Face's writers do it.
inline constexpr std::int64_t kMaxFileBytes = 5'000'000'000;

struct ColumnSpec {
  std::string name;
  std::vector<TensorSpec> tensors;
  // How tensors are cut of which no rank has a range of the whole: boxes that hold every element
  // once, the same on every rank. The others are stored whole.
  std::map<std::string, std::vector<layout::Box>> slices = {};
};

// "element [0, 3] of tensor 'w' is held by 2 slices instead of 1".
std::string miscovered_text(const std::string& tensor, const layout::Miscovered& found);

struct PlannedFile {
  std::string name;
  std::string column;
  Safetensors contents;
};

struct TensorPlace {
  int file = 0;
  int tensor = 0;  // in the file
};

// What a stored tensor is that is not a whole one.
struct PlannedSlice {
  TensorSpec tensor;
  layout::Box box;
};

struct FilePlan {
  std::vector<PlannedFile> files;
  // By column and stored tensor; see slice_spec().
  std::map<std::pair<std::string, std::string>, TensorPlace> places;
  std::map<std::pair<std::string, std::string>, PlannedSlice> slices;

  // Throws InternalError for a tensor that was not planned.
  TensorPlace place(const std::string& column, const std::string& tensor) const;
  const StoredTensor& stored(TensorPlace place) const;
  std::int64_t bytes() const;
};

// Throws InternalError for slices that do not hold every element once. A column takes one file, or
// several of at most max_file_bytes (one tensor per file at least).
FilePlan plan_files(const std::vector<ColumnSpec>& columns, std::int64_t max_file_bytes);

// The text of model.safetensors.index.json, which tells Hugging Face's readers where each weight
// is; empty where one file holds them all.
std::string weights_index(const FilePlan& plan);

}  // namespace capstan::checkpoint
