// Code points of UTF-8 text and the kinds of them that GPT-2's splitting rule knows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace capstan::data {

enum class CharKind { letter, number, space, other };

CharKind kind_of(std::uint32_t code_point);

struct CodePoint {
  std::uint32_t value = 0;
  int bytes = 0;  // how many it takes in the text; 0 only at the end
};

// The code point at the start of `text`. A byte that is not UTF-8 counts as U+FFFD of one byte, so
// that any bytes can be read and nothing is lost.
CodePoint first_code_point(std::string_view text);

// Fit for a screen or a page: valid UTF-8, and no control characters but tab and line feed. What
// is not becomes U+FFFD, the replacement character.
std::string printable_text(std::string_view bytes);

}  // namespace capstan::data
