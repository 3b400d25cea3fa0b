#include "capstan/data/byte_pairs.h"

#include <queue>
#include <tuple>

namespace capstan::data {
namespace {

// Symbols as a doubly linked list in a vector: merging never moves the others.
struct LinkedSymbol {
  Token token = 0;
  int previous = -1;
  int next = -1;
  bool alive = true;
};

struct PossibleMerge {
  Merge merge;
  int left = 0;
  Token left_token = 0;   // what it was when this was queued:
  Token right_token = 0;  // the entry is stale if either changed since

  bool operator<(const PossibleMerge& other) const {  // for a queue whose top is the smallest
    return std::tie(merge.rank, left) > std::tie(other.merge.rank, other.left);
  }
};

class PairMerger {
 public:
  PairMerger(const MergeTable& table, std::span<const Token> symbols) : table_(table) {
    const int count = static_cast<int>(symbols.size());
    for (int i = 0; i < count; ++i) {
      list_.push_back({symbols[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
    }
    for (int i = 0; i < count; ++i) consider(i);
  }

  std::vector<Token> run() {
    while (!queue_.empty()) {
      const PossibleMerge top = queue_.top();
      queue_.pop();
      if (is_current(top)) apply(top);
    }
    std::vector<Token> tokens;
    for (const LinkedSymbol& symbol : list_) {
      if (symbol.alive) tokens.push_back(symbol.token);
    }
    return tokens;
  }

 private:
  LinkedSymbol& at(int index) { return list_[static_cast<std::size_t>(index)]; }

  void consider(int left) {
    if (left < 0 || at(left).next < 0) return;
    const Token right_token = at(at(left).next).token;
    const Merge* merge = table_.find(at(left).token, right_token);
    if (merge != nullptr) queue_.push({*merge, left, at(left).token, right_token});
  }

  bool is_current(const PossibleMerge& entry) {
    const LinkedSymbol& left = at(entry.left);
    return left.alive && left.token == entry.left_token && left.next >= 0 &&
           at(left.next).token == entry.right_token;
  }

  void apply(const PossibleMerge& entry) {
    LinkedSymbol& left = at(entry.left);
    LinkedSymbol& right = at(left.next);
    left.token = entry.merge.result;
    right.alive = false;
    left.next = right.next;
    if (left.next >= 0) at(left.next).previous = entry.left;
    consider(left.previous);
    consider(entry.left);
  }

  const MergeTable& table_;
  std::vector<LinkedSymbol> list_;
  std::priority_queue<PossibleMerge> queue_;
};

}  // namespace

const Merge* MergeTable::find(Token left, Token right) const {
  const auto found = merges_.find(key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<Token> merge_pairs(const MergeTable& table, std::span<const Token> symbols) {
  return PairMerger(table, symbols).run();
}

}  // namespace capstan::data
