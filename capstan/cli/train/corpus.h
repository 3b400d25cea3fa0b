// The text or tokens to train on, cut into training and validation samples.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "capstan/cli/train/arguments.h"
#include "capstan/data/tokenizer.h"
#include "capstan/data/windows.h"

namespace capstan::cli::train {

struct Corpus {
  std::unique_ptr<data::Tokenizer> tokenizer;  // null for a token file that came without one
  std::string tokenizer_json;                  // its file; empty for bytes and for no tokenizer
  std::int64_t vocab = 0;
  data::Windows train;
  data::Windows validation;
  std::string description;  // "1.2 MiB of text from 300 files, 1.2M tokens"
};

// `tokens` is the length of a sequence. Throws ConfigError or IoError, see data/.
Corpus load_corpus(const DataArguments& arguments, std::int64_t tokens);

// With the vocabulary that the newest complete checkpoint in `resume` was trained with, unless
// another one is asked for. Unchanged where there is no such checkpoint.
DataArguments with_vocabulary_of(const std::string& resume, DataArguments arguments);

}  // namespace capstan::cli::train
