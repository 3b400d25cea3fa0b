// GPT-2's rule for cutting text into pieces before byte-pair merging: the pattern
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// written by hand, one pass, no regular expressions.
#pragma once

#include <string_view>
#include <vector>

namespace capstan::data {

// Pieces that put together are `text` again; they point into it.
std::vector<std::string_view> gpt2_split(std::string_view text);

}  // namespace capstan::data
