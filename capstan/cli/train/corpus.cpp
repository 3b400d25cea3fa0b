#include "capstan/cli/train/corpus.h"

#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "capstan/base/shown_path.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/data/learn_tokenizer.h"
#include "capstan/data/text_files.h"

namespace capstan::cli::train {
namespace {

constexpr std::int64_t kByteVocab = 256;  // each byte is a token

std::vector<std::string> name_patterns(const std::string& list) {
  std::vector<std::string> patterns;
  for (const std::string& each : split(list, ',')) {
    if (!trim(each).empty()) patterns.emplace_back(trim(each));
  }
  return patterns;
}

struct LoadedTokens {
  data::TokenData tokens;
  std::string description;
};

LoadedTokens load_token_file(const DataArguments& arguments) {
  const auto type = arguments.token_bits == 32 ? data::TokenType::uint32 : data::TokenType::uint16;
  data::TokenData tokens = data::TokenData::map_file(arguments.path, type);
  std::string description = fmt::format("{} tokens in {}", tokens.size(), arguments.path);
  return {std::move(tokens), std::move(description)};
}

LoadedTokens tokens_of(const std::vector<data::Document>& documents, data::Tokenizer& tokenizer) {
  std::int64_t bytes = 0;
  for (const data::Document& each : documents) bytes += static_cast<std::int64_t>(each.text.size());
  const std::vector<data::Token> row = data::tokenize(documents, tokenizer);
  return {data::TokenData(row, tokenizer.vocab()),
          fmt::format("{} of text in {}, {} tokens of a vocabulary of {}", format_bytes(bytes),
                      counted(std::ssize(documents), "file"), row.size(), tokenizer.vocab())};
}

// The file of the tokenizer; empty: bytes.
std::string choose_tokenizer(const DataArguments& arguments,
                             const std::vector<data::Document>& documents) {
  if (!arguments.tokenizer.empty()) return checkpoint::read_text_file(arguments.tokenizer);
  if (arguments.path.ends_with(".bin") || arguments.vocab == kByteVocab) return "";
  return data::learn_tokenizer(documents, arguments.vocab > 0 ? arguments.vocab : kLearntVocab);
}

}  // namespace

Corpus load_corpus(const DataArguments& arguments, std::int64_t tokens) {
  const bool token_file = arguments.path.ends_with(".bin");
  std::vector<data::Document> documents;
  if (!token_file) documents = data::read_text(arguments.path, name_patterns(arguments.files));
  std::string json = choose_tokenizer(arguments, documents);
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (!json.empty()) {
    tokenizer =
        data::read_tokenizer(json, arguments.tokenizer.empty() ? "the learned tokenizer"
                                                               : shown_path(arguments.tokenizer));
  } else if (!token_file) {
    tokenizer = std::make_unique<data::ByteTokenizer>();
  }
  const std::int64_t bits_vocab = std::int64_t{1} << arguments.token_bits;
  const std::int64_t file_vocab = arguments.vocab > 0 ? arguments.vocab : bits_vocab;
  const std::int64_t vocab = tokenizer ? tokenizer->vocab() : file_vocab;
  LoadedTokens loaded = token_file ? load_token_file(arguments) : tokens_of(documents, *tokenizer);
  const data::SplitTokens split =
      data::split_for_validation(loaded.tokens, arguments.validation, /*smallest=*/tokens + 1);
  return {.tokenizer = std::move(tokenizer),
          .tokenizer_json = std::move(json),
          .vocab = vocab,
          .train = data::Windows(split.train, tokens, vocab),
          .validation = data::Windows(split.validation, tokens, vocab),
          .description = std::move(loaded.description)};
}

DataArguments with_vocabulary_of(const std::string& resume, DataArguments arguments) {
  if (resume.empty() || !arguments.tokenizer.empty() || arguments.vocab > 0) return arguments;
  for (const checkpoint::Found& found : checkpoint::list_checkpoints(resume)) {
    if (!found.problem.empty()) continue;
    const std::filesystem::path file = found.folder / "tokenizer.json";
    if (std::filesystem::exists(file)) {
      arguments.tokenizer = file.string();
    } else if (!arguments.path.ends_with(".bin")) {
      arguments.vocab = kByteVocab;
    }
    break;
  }
  return arguments;
}

}  // namespace capstan::cli::train
