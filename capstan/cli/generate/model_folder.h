// A folder with a model to generate from: where its weights are, its size, its tokenizer.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "capstan/cli/generate/search.h"
#include "capstan/data/tokenizer.h"
#include "capstan/models/blueprint.h"

namespace capstan::cli::generate {

struct ModelFolder {
  std::filesystem::path weights;  // as Engine::load_checkpoint() takes it
  std::string tag;                // likewise
  std::filesystem::path files;    // where config.json is
  std::shared_ptr<const models::Blueprint> model;
  Tokens ends;  // tokens that end a text
};

// `folder` holds checkpoints of capstan train, is one of them, or has weights of Hugging Face.
// Throws ConfigError or IoError that says what is missing, or what of config.json we cannot do.
ModelFolder open_model_folder(const std::filesystem::path& folder, const std::string& tag);

// The given tokenizer.json, the folder's own, or bytes where the vocabulary is that of bytes.
std::unique_ptr<data::Tokenizer> open_tokenizer(const ModelFolder& folder,
                                                const std::string& given);

}  // namespace capstan::cli::generate
