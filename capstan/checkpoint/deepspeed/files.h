// The files of one DeepSpeed checkpoint, opened, and what their names say.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/checkpoint/deepspeed/torch_archive.h"
#include "capstan/checkpoint/tensor_spec.h"

namespace capstan::checkpoint {

// Throws IoError that names the missing key; `where` is the file.
const PyValue& required(const PyValue& in, std::string_view key, std::string_view where);

struct DeepSpeedFiles {
  std::vector<TorchArchive> models;    // one; at stage 3 one per rank, in order
  std::vector<TorchArchive> optims;    // one per rank, in order; none at stage 0
  std::optional<TorchArchive> common;  // of a universal one: what is not per parameter
  std::filesystem::path folder;
  bool bf16 = false;       // by the names of the optimizer's files
  bool universal = false;  // a folder zero/ with files per parameter

  const PyValue& model() const { return models.front().root(); }
};

// Throws IoError.
std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder);

// The same. Throws IoError where its shape is that of no tensor.
TensorSpec countable(TensorSpec spec);

DeepSpeedFiles open_deepspeed(const std::filesystem::path& checkpoint);

// A range of elements of a contiguous tensor in an archive, as bytes on disk.
FileSpan part_of(const TorchArchive& archive, const PyTensor& tensor, std::int64_t begin,
                 std::int64_t elems);

// name -> shape, in order, over all groups of "param_shapes".
std::vector<std::vector<TensorSpec>> param_shapes(const PyValue& model);

}  // namespace capstan::checkpoint
