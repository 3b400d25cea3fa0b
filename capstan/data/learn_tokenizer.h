// Learns a byte-pair vocabulary from text: the most frequent pair of neighbours becomes a token,
// again and again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capstan/data/text_files.h"

namespace capstan::data {

// Enough text to know its frequent words; what lies beyond is not looked at.
inline constexpr std::int64_t kMaxLearntBytes = 32 << 20;

// A tokenizer.json with at most `vocab` tokens, as read_tokenizer() and Hugging Face read it: the
// end of text, the 256 bytes, then the merges. Fewer tokens where no pair of neighbours comes
// twice. The same text gives the same file on every machine. Throws ConfigError for a `vocab`
// without room for the bytes.
std::string learn_tokenizer(const std::vector<Document>& documents, std::int64_t vocab);

}  // namespace capstan::data
