// Small text helpers that several folders need.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace capstan {

// "1.5 GiB", "512 B": three significant digits, binary units.
std::string format_bytes(std::int64_t bytes);

// "1 rank", "2 ranks", "0 processes".
std::string counted(std::int64_t count, std::string_view noun);

// Pieces between separators; empty pieces are kept.
std::vector<std::string> split(std::string_view text, char separator);

// Without white space at both ends.
std::string_view trim(std::string_view text);

// The name in `known` nearest to `word` by edit distance, or empty when none is near enough to be
// a likely typing mistake.
std::string nearest_name(std::string_view word, std::span<const std::string> known);

}  // namespace capstan
