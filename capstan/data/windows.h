// A row of tokens as training samples: windows of equal length, and the token that follows each.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "capstan/data/token_data.h"

namespace capstan::data {

// Sample i covers tokens [i * length, (i + 1) * length), its targets the same shifted by one.
class Windows {
 public:
  // Throws ConfigError when there are too few tokens for one window.
  Windows(TokenData tokens, std::int64_t length, std::int64_t vocab);

  std::int64_t count() const { return (tokens_.size() - 1) / length_; }
  std::int64_t length() const { return length_; }

  // Both spans have room for samples.size() * length() tokens. Throws ConfigError for a token
  // outside the vocabulary, with its place in the file.
  void read(std::span<const std::int64_t> samples, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const;

 private:
  TokenData tokens_;
  std::int64_t length_;
  std::int64_t vocab_;
};

struct SplitTokens {
  TokenData train;
  TokenData validation;
};

// The last `fraction` of the tokens is kept for validation, at least `smallest` of them.
SplitTokens split_for_validation(const TokenData& tokens, double fraction, std::int64_t smallest);

}  // namespace capstan::data
