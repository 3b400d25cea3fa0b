#include "capstan/cli/train/corpus.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "capstan/base/text.h"
#include "capstan/data/text_files.h"

namespace capstan::cli::train {
namespace {

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

LoadedTokens load_text(const DataArguments& arguments, data::Tokenizer& tokenizer) {
  const std::vector<data::Document> documents = data::read_text(arguments.path);
  std::int64_t bytes = 0;
  for (const data::Document& each : documents) bytes += static_cast<std::int64_t>(each.text.size());
  const std::vector<data::Token> row = data::tokenize(documents, tokenizer);
  return {data::TokenData(row, tokenizer.vocab()),
          fmt::format("{} of text in {}, {} tokens", format_bytes(bytes),
                      counted(std::ssize(documents), "file"), row.size())};
}

}  // namespace

Corpus load_corpus(const DataArguments& arguments, std::int64_t tokens) {
  const bool token_file = arguments.path.ends_with(".bin");
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (!arguments.tokenizer.empty()) {
    tokenizer = data::load_tokenizer(arguments.tokenizer);
  } else if (!token_file) {
    tokenizer = std::make_unique<data::ByteTokenizer>();
  }
  const std::int64_t bits_vocab = std::int64_t{1} << arguments.token_bits;
  const std::int64_t file_vocab = arguments.vocab > 0 ? arguments.vocab : bits_vocab;
  const std::int64_t vocab = tokenizer ? tokenizer->vocab() : file_vocab;
  LoadedTokens loaded = token_file ? load_token_file(arguments) : load_text(arguments, *tokenizer);
  const data::SplitTokens split =
      data::split_for_validation(loaded.tokens, arguments.validation, /*smallest=*/tokens + 1);
  return {.tokenizer = std::move(tokenizer),
          .vocab = vocab,
          .train = data::Windows(split.train, tokens, vocab),
          .validation = data::Windows(split.validation, tokens, vocab),
          .description = std::move(loaded.description)};
}

}  // namespace capstan::cli::train
