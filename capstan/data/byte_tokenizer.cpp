#include "capstan/data/tokenizer.h"

namespace capstan::data {

std::vector<Token> ByteTokenizer::encode(std::string_view text) {
  std::vector<Token> tokens;
  tokens.reserve(text.size());
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const Token> tokens) const {
  std::string text;
  for (const Token token : tokens) {
    if (token < 256) text.push_back(static_cast<char>(token));
  }
  return text;
}

}  // namespace capstan::data
