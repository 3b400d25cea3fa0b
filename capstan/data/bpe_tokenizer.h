// Byte-level byte-pair encoding as Hugging Face's tokenizers do it for GPT-2.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "capstan/data/byte_pairs.h"
#include "capstan/data/tokenizer.h"

namespace capstan::data {

// A token that is found in the text before anything else, such as "<|endoftext|>".
struct AddedToken {
  std::string text;
  Token token = 0;
  bool normalized = false;  // those that are not are searched first
};

// What a tokenizer.json says, in terms of bytes.
struct BpeModel {
  std::vector<std::string> bytes_of_token;              // by token; empty where there is none
  std::array<std::optional<Token>, 256> token_of_byte;  // bytes without a token are left out
  MergeTable merges;
  std::vector<AddedToken> added;
  bool split = true;          // by GPT-2's rule; false: merge across the whole text
  bool prefix_space = false;  // a space is put before text that has none
  std::optional<Token> end_of_text;
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeModel model);

  std::vector<Token> encode(std::string_view text) override;
  std::string decode(std::span<const Token> tokens) const override;
  std::int64_t vocab() const override;
  std::optional<Token> end_of_text() const override { return model_.end_of_text; }

 private:
  void encode_plain(std::string_view text, std::vector<Token>& out);
  void encode_piece(std::string_view piece, std::vector<Token>& out);

  BpeModel model_;
  std::vector<AddedToken> first_pass_;   // longest first
  std::vector<AddedToken> second_pass_;  // longest first
  std::unordered_map<std::string, std::vector<Token>> cache_;
};

}  // namespace capstan::data
