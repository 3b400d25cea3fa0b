// DeepSpeed's own checkpoints (stages 0 to 3, universal) as tensors of ours: whole, by name, each
// put together from ranges of the files where the ranks left them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "capstan/checkpoint/deepspeed/torch_archive.h"
#include "capstan/checkpoint/reader.h"
#include "capstan/checkpoint/tensor_spec.h"
#include "capstan/checkpoint/training_state.h"

namespace capstan::checkpoint {

struct ImportedTensor {
  std::string column;
  TensorSpec spec;
  std::vector<FileSpan> spans;  // its bytes, one after another
};

// Weights are the fp32 masters where there are some; frozen weights and buffers have their own
// dtype. state.precision says what the run trained in.
struct Imported {
  std::vector<ImportedTensor> tensors;
  TrainingState state;
};

// Whether this folder (of one tag) holds files of DeepSpeed.
bool is_deepspeed(const std::filesystem::path& checkpoint);

// Reads directories and pickles, no tensors. Throws IoError or ConfigError that says what is
// missing or not read (tensor and pipeline parallel files, classes that are not data).
Imported read_deepspeed(const std::filesystem::path& checkpoint);

// folder/<tag>, or without a tag the folder itself or the one that `latest` names; nothing where
// that holds no files of DeepSpeed.
std::optional<std::filesystem::path> find_deepspeed(const std::filesystem::path& folder,
                                                    const std::string& tag);

// To read from, tensor by tensor: a checkpoint of ours or of DeepSpeed's, or weights of Hugging
// Face.
Reader open_reader(const std::filesystem::path& checkpoint);

}  // namespace capstan::checkpoint
