// Byte-pair merging: the tokens of one piece of text under a table of merges.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "capstan/data/tokenizer.h"

namespace capstan::data {

struct Merge {
  std::uint32_t rank = 0;  // lower is merged earlier
  Token result = 0;
};

class MergeTable {
 public:
  // A pair that is given twice keeps its last merge.
  void add(Token left, Token right, Merge merge) { merges_[key(left, right)] = merge; }
  const Merge* find(Token left, Token right) const;

 private:
  static std::uint64_t key(Token left, Token right) {
    return (static_cast<std::uint64_t>(left) << 32U) | right;
  }
  std::unordered_map<std::uint64_t, Merge> merges_;  // looked up only, never iterated
};

// Merges neighbours, lowest rank first, leftmost of equals, until no pair is in the table.
// Takes n log n steps, so a page of text without a space is no trap.
std::vector<Token> merge_pairs(const MergeTable& table, std::span<const Token> symbols);

}  // namespace capstan::data
