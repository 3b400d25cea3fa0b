// Weights as Hugging Face's save_pretrained() leaves them: model.safetensors, or several such files
// that model.safetensors.index.json lists.
#pragma once

#include <filesystem>

#include "capstan/checkpoint/reader.h"

namespace capstan::checkpoint {

bool is_hugging_face(const std::filesystem::path& folder);

// Reads headers, no tensors. Throws IoError or ConfigError that names the file.
Reader open_hugging_face(const std::filesystem::path& folder);

}  // namespace capstan::checkpoint
