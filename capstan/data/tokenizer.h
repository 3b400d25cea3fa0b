// Text to token numbers and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::data {

using Token = std::uint32_t;

// Threads: encode() may keep a cache; one thread at a time.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::vector<Token> encode(std::string_view text) = 0;
  // The bytes of the tokens; a character cut in the middle gives bytes that are no whole UTF-8.
  // Tokens outside the vocabulary (rows a model has only for padding) give nothing.
  virtual std::string decode(std::span<const Token> tokens) const = 0;

  virtual std::int64_t vocab() const = 0;  // tokens are below this
  // Stands between documents; none where the vocabulary has no such token.
  virtual std::optional<Token> end_of_text() const = 0;
};

// Each byte is a token; byte 0, which text does not have, is the end of text.
class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<Token> encode(std::string_view text) override;
  std::string decode(std::span<const Token> tokens) const override;
  std::int64_t vocab() const override { return 256; }
  std::optional<Token> end_of_text() const override { return 0; }
};

// GPT-2 style byte-pair encoding from a Hugging Face tokenizer.json. Throws ConfigError for a file
// that asks for anything else than byte-level BPE, naming the field; IoError if it cannot be read.
// The post-processor is not looked at: it frames single sentences, and training text is a stream.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& tokenizer_json);

// The same for the text of such a file; `where` names it in messages.
std::unique_ptr<Tokenizer> read_tokenizer(std::string_view json, const std::string& where);

}  // namespace capstan::data
