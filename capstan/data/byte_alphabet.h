// GPT-2's files write each byte of a token as one printable character; this is that alphabet.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace capstan::data {

// The character (as UTF-8) that stands for `byte`: itself where printable in Latin-1, else one of
// the characters from U+0100 on.
std::string character_of(unsigned char byte);

// The bytes behind a token's text; nothing if a character is not of the alphabet.
std::optional<std::string> bytes_of(std::string_view token_text);

}  // namespace capstan::data
