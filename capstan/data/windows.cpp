#include "capstan/data/windows.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <vector>

#include "capstan/base/error.h"

namespace capstan::data {

Windows::Windows(TokenData tokens, std::int64_t length, std::int64_t vocab)
    : tokens_(std::move(tokens)), length_(length), vocab_(vocab) {
  if (length <= 0 || tokens_.size() <= length) {
    throw ConfigError({.what = std::to_string(tokens_.size()) + " tokens are too few for one " +
                               "sequence of " + std::to_string(length),
                       .where = tokens_.name(),
                       .fix = "use more text, or shorter sequences"});
  }
}

void Windows::read(std::span<const std::int64_t> samples, std::span<std::int64_t> inputs,
                   std::span<std::int64_t> targets) const {
  const auto length = static_cast<std::size_t>(length_);
  assert(inputs.size() == samples.size() * length && targets.size() == inputs.size());
  std::vector<std::int64_t> window(length + 1);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::int64_t begin = samples[i] * length_;
    tokens_.read(begin, window);
    const auto wrong = std::find_if(window.begin(), window.end(),
                                    [this](std::int64_t token) { return token >= vocab_; });
    if (wrong != window.end()) {
      throw ConfigError(
          {.what = "token " + std::to_string(*wrong) + " is outside the vocabulary of " +
                   std::to_string(vocab_),
           .where = tokens_.name() + ", token " + std::to_string(begin + (wrong - window.begin())),
           .fix = "check the type (uint16 or uint32) and the tokenizer the file was made with"});
    }
    std::copy_n(window.begin(), length, inputs.begin() + static_cast<std::ptrdiff_t>(i * length));
    std::copy_n(window.begin() + 1, length,
                targets.begin() + static_cast<std::ptrdiff_t>(i * length));
  }
}

SplitTokens split_for_validation(const TokenData& tokens, double fraction, std::int64_t smallest) {
  const auto wished = static_cast<std::int64_t>(static_cast<double>(tokens.size()) * fraction);
  const std::int64_t kept = std::min(std::max(wished, smallest), tokens.size());
  const std::int64_t cut = tokens.size() - kept;
  return {tokens.slice(0, cut), tokens.slice(cut, tokens.size())};
}

}  // namespace capstan::data
