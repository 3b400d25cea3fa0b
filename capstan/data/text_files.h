// Text to train on, read from a file or gathered from a folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "capstan/data/tokenizer.h"

namespace capstan::data {

struct Document {
  std::filesystem::path path;
  std::string text;
};

// A file as it is; from a folder all files below it that are text, in the order of their paths, so
// that every machine sees the same row; with `names` only those whose name matches one of these
// patterns ("*.md"). Text is UTF-8 without zero bytes, at most kMaxTextBytes. Hidden files and
// folders are left out, and so are folders named "build". Throws IoError for what cannot be read,
// ConfigError when there is no text at all.
inline constexpr std::int64_t kMaxTextBytes = 1 << 20;
std::vector<Document> read_text(const std::filesystem::path& file_or_folder,
                                const std::vector<std::string>& names = {});

// All documents as one row, the end of text after each.
std::vector<Token> tokenize(const std::vector<Document>& documents, Tokenizer& tokenizer);

}  // namespace capstan::data
